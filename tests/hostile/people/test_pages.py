"""A page on a user's server, opened by another logged-in user: it cannot use the job service's pages.

All servers share the hub's origin here, as they do without domains for users.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Cookie, Page, Request, expect

from ...browser.conftest import USER, Site
from ...browser.lab import JOBS_PATH, open_jobs, open_notebook, run_cell, wait_ran

QUEUE = f"{JOBS_PATH}queue"
PAGES = ("home", "jobs", "runs", "cluster", "images", "queue", "runs/1")
SHORT = "%%distribute --nodes 1 --name urls\nprint('done')"
SCRIPT = "<script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"
NAMED = f'%%distribute --nodes 1 --name "{SCRIPT}"\nprint(1)'

FRAME = """(url) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.onload = () => done(frame.contentDocument?.documentElement.outerHTML ?? "nothing");
  frame.src = url;
  document.body.append(frame);
})"""
POPUP = """(url) => new Promise((done) => {
  const button = document.createElement("button");
  button.id = "open";
  button.textContent = "open";
  button.onclick = () => {
    const other = window.open(url);
    const look = () => {
      try {
        const told = other.closed ? "nothing" : other.document.querySelector("#minicluster")?.outerHTML;
        told ? (window.seen = told) : setTimeout(look, 50);
      } catch (error) {
        window.seen = "nothing";
      }
    };
    look();
  };
  document.body.append(button);
  done();
})"""
READ = """([url, mode]) =>
  fetch(url, { mode, credentials: "include" }).then((answer) => answer.text(), () => "nothing")"""
POST = """async (url) => (await fetch(url, { method: "POST" })).status"""


@pytest.fixture
def hostile(page: Page, site: Site) -> Iterator[Page]:
    """A page of a user's server, in the browser of a user who is logged in at the job service."""
    open_jobs(page, site.url)
    folder = site.home / ".local" / "share" / "jupyter" / "labextensions" / "prize"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prize.html").write_text("<!DOCTYPE html><title>Prize</title><body>You won.</body>")
    answer = page.goto(f"{site.url}/user/{USER}/lab/extensions/prize/prize.html")
    assert answer is not None and answer.ok
    expect(page.get_by_text("You won.")).to_be_visible()
    yield page


def cookie(page: Page) -> Cookie:
    """Return this browser's cookie with the job service's XSRF token."""
    (found,) = (one for one in page.context.cookies() if (one["name"], one["path"]) == ("_xsrf", JOBS_PATH))
    return found


def test_a_frame_around_a_page_shows_nothing(hostile: Page) -> None:
    for path in (*PAGES, "nowhere"):
        assert hostile.evaluate(FRAME, f"{JOBS_PATH}{path}") == "nothing"


def test_who_opens_a_page_in_a_window_cannot_reach_into_it(hostile: Page) -> None:
    hostile.evaluate(POPUP, QUEUE)
    with hostile.context.expect_page() as opened:
        hostile.click("#open")
    expect(opened.value.get_by_role("heading", name="Queue")).to_be_visible()
    hostile.wait_for_function("window.seen !== undefined")
    assert hostile.evaluate("window.seen") == "nothing"


@pytest.mark.parametrize("mode", ["cors", "same-origin", "no-cors"])
def test_a_script_of_the_same_origin_reads_neither_page_nor_token(hostile: Page, mode: str) -> None:
    for path in ("queue", "api/jobs", "api/policy"):
        result = hostile.evaluate(READ, [f"{JOBS_PATH}{path}", mode])
        assert cookie(hostile)["value"] not in result
        assert '"jobs"' not in result and '"in_force"' not in result


def test_the_token_is_in_no_cookie_that_a_script_sees(hostile: Page) -> None:
    assert cookie(hostile)["httpOnly"]


def test_without_the_token_nothing_is_changed(hostile: Page) -> None:
    for path in ("api/jobs", "api/jobs/1/stop"):
        assert hostile.evaluate(POST, f"{JOBS_PATH}{path}") == 403


def run_job(page: Page, site: Site, name: str, source: str) -> None:
    site.put_notebook(f"{name}.ipynb", source)
    open_notebook(page, site.url, USER, f"{name}.ipynb")
    wait_ran(run_cell(page, 0))


@pytest.mark.full("forty seconds of all pages")
def test_no_url_holds_the_token(page: Page, site: Site) -> None:
    run_job(page, site, "urls", SHORT)
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    tokens = set()
    for path in PAGES:
        page.goto(f"{site.url}{JOBS_PATH}{path}")
        with page.expect_response(lambda answer: "/api/" in answer.url and answer.ok):
            page.reload()
        tokens.add(page.locator("#minicluster").get_attribute("data-xsrf"))
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").first.click()
    assert "done" in download.value.path().read_text()
    urls = [request.url for request in asked if JOBS_PATH in request.url]
    assert all(tokens) and any("api/events" in url for url in urls)
    assert not [url for url in urls if "xsrf" in url or any(token in url for token in tokens)]


def test_a_script_in_a_jobs_name_is_a_name(page: Page, session: BrowserContext, site: Site) -> None:
    run_job(page, site, "named", NAMED)
    for path in ("", "queue", "nodes"):
        other = session.new_page()
        other.goto(f"{site.url}{JOBS_PATH}{path}")
        if not path:
            expect(other.get_by_role("row").filter(has_text=SCRIPT)).to_be_visible()
        assert other.evaluate("window.broken") is None
