"""The home page: it tells a newcomer what to type, then changes with the jobs, without a reload."""

from __future__ import annotations

from playwright.sync_api import BrowserContext, Page, Route, expect

from .conftest import USER, Site
from .lab import JOB_MS, JOBS_PATH, open_notebook, output_of, run_cell

EVIL = "<img src=x onerror='window.broken = 1'>"
LOGS = f"""%%distribute --nodes 3 --name "curve {EVIL}" --tag first
import time
import minicluster as mc
for step in range(3000):
    mc.log(step=step, loss=1 / (step + 1))
    time.sleep(0.1)
"""
WAITS = """%%distribute --nodes 3 --name waiting --detach
print("done")
"""
NARROW = {"width": 390, "height": 800}


def fits(page: Page) -> bool:
    """Whether nothing makes the page wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def contrast(page: Page, selector: str, behind: str = "body") -> float:
    """Return the contrast of a text with the background of what is behind it, as WCAG computes it."""
    return page.evaluate(
        """([selector, behind]) => {
          const numbers = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
          const light = (rgb) => rgb.map((one) => one / 255)
            .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
            .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
          const [text, page] = [selector, behind].map((one) =>
            getComputedStyle(document.querySelector(one)));
          const [one, other] = [light(numbers(text.color)), light(numbers(page.backgroundColor))];
          return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        }""",
        [selector, behind],
    )


def test_home_tells_what_to_type_then_what_runs(page, session, site, shots):
    home = session.new_page()
    asked: list[str] = []
    home.on("request", lambda request: asked.append(request.url))
    home.goto(f"{site.url}{JOBS_PATH}home")
    expect(home.locator("#free")).to_have_text("3 of 3 CPU slots")
    names = sorted(filter(None, (url.partition("/minicluster/api/")[2] for url in asked)))
    assert names == ["events", "home"]
    if home.locator("#runs tbody tr").count() == 0:  # Other tests may have had runs in this cluster.
        expect(home.locator("#welcome")).to_contain_text("%%distribute --nodes 1")
    expect(home.get_by_role("link", name="Notebooks").first).to_have_attribute("href", "/hub/home")
    assert home.locator(".navbar .nav-link").first.inner_text() == "Home"

    home.evaluate("window.mark = 1")
    site.put_notebook("home.ipynb", LOGS, WAITS)
    open_notebook(page, site.url, USER, "home.ipynb")
    output_of(run_cell(page, 0))
    running = home.locator("#running li")
    expect(running).to_contain_text("running")
    expect(home.locator("#free")).to_have_text("0 of 3 CPU slots")
    row = home.locator("#runs tbody tr").first
    expect(row).to_contain_text("home.ipynb, first")
    expect(row.locator("polyline")).to_be_visible()
    drawn = row.locator("polyline").get_attribute("points")
    expect(row.locator("polyline")).not_to_have_attribute("points", drawn or "")

    home.set_viewport_size(NARROW)
    assert fits(home)
    home.set_viewport_size({"width": 1280, "height": 900})
    for theme in ("dark", "light"):
        home.evaluate(f"document.documentElement.dataset.bsTheme = '{theme}'")
        assert contrast(home, "#runs .text-body-secondary") > 4.5, theme
    home.screenshot(path=shots / "home.png")
    running.get_by_role("button", name="Stop").click()
    expect(home.locator("#running-none")).to_be_visible()
    expect(row).to_contain_text("stopped")
    assert home.evaluate("window.broken === undefined && window.mark === 1")


def test_an_answer_that_is_older_than_an_event_does_not_win(
    page: Page, session: BrowserContext, site: Site
) -> None:
    home = session.new_page()
    home.goto(f"{site.url}{JOBS_PATH}home")
    expect(home.locator("#content")).to_be_visible()
    running = home.locator("#running li")

    def late(route: Route) -> None:
        """Answer only when the page knows by an event that the job runs, with what was true before."""
        answer = route.fetch()
        expect(running).to_contain_text("running")
        found = answer.json()
        found["jobs"][0]["state"] = "starting"
        route.fulfill(response=answer, json=found)

    home.route("**/api/home", late, times=1)
    site.put_notebook("late.ipynb", LOGS)
    open_notebook(page, site.url, USER, "late.ipynb")
    with home.expect_response("**/api/home", timeout=JOB_MS) as answered:
        run_cell(page, 0)
    answered.value.finished()
    home.wait_for_timeout(500)
    expect(running).to_contain_text("running")
    running.get_by_role("button", name="Stop").click()
    expect(home.locator("#running-none")).to_be_visible()
