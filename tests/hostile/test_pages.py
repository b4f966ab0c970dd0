"""A hostile page in a browser: what it gets of our pages. All tests of this file drive chromium."""

from playwright.sync_api import expect

from ..browser.lab import JOBS_PATH

FRAMING = f'<iframe src="{JOBS_PATH}queue" width="900" height="900"></iframe>'
PAGES = ("", "nodes", "images", "queue")


def test_a_page_of_a_users_server_cannot_frame_the_services(page, site):
    (site.home / "harmless.html").write_text(FRAMING)
    page.goto(f"{site.url}/user/admin/files/harmless.html")
    expect(page.locator("iframe")).to_be_visible()
    refused = page.frame_locator("iframe").locator("#sub-frame-error-details")
    expect(refused).to_be_visible()


def test_no_address_holds_the_token_by_which_a_page_may_act(page, site):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    for path in PAGES:
        page.goto(f"{site.url}{JOBS_PATH}{path}")
        expect(page.locator("#minicluster")).to_be_visible()
        page.wait_for_load_state("load")
    token = page.locator("#minicluster").get_attribute("data-xsrf")
    assert token
    of_ours = [url for url in asked if f"{JOBS_PATH}api/" in url]
    assert of_ours, "the pages asked for nothing"
    assert not [url for url in asked if "_xsrf" in url or token in url]
