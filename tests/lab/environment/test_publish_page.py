"""An image by browser: published in a notebook, allowed on the page Images, run on three hosts."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from minicluster_hub.login.accounts_file import FIRST_USER

from ...browser.lab import JOBS_PATH, open_notebook, output_of, run_cell, wait_ran
from ...service.publishing.index import Index
from ..cluster import LabCluster
from ..pages import WAIT_MS, log_in, put_notebook, start_server, stop_server
from ..remains import check_nothing_left
from ..test_main_job import NODES, top

USER = "iris"
CELLS = (
    "%pip install tinypaint==1.4",
    '%distribute publish drawing --description "colours for the seminar"',
    "%%distribute --nodes 3 --image drawing\nimport tinypaint\nblue = tinypaint.BLUE",
    "blue",
)


def test_a_user_publishes_and_an_administrator_allows(
    offering: LabCluster, index: Index, browser: Browser, page: Page, shots: Path
) -> None:
    index.add("tinypaint", "1.4", {"tinypaint.py": "BLUE = '0000ff'\n"})
    start_server(page, offering, USER)
    put_notebook(offering, "drawing.ipynb", *CELLS)
    open_notebook(page, offering.url, USER, "drawing.ipynb")
    page.keyboard.press("Control+b")
    wait_ran(install := run_cell(page, 0), WAIT_MS)
    expect(output_of(install)).to_contain_text("Successfully installed tinypaint-1.4")
    wait_ran(publish := run_cell(page, 1), WAIT_MS)
    expect(publish.locator(".mc-picture")).to_contain_text("Succeeded on 1 rank")
    expect(output_of(publish)).to_contain_text("It waits for an administrator")
    page.screenshot(path=shots / "publish.png", clip=top(680))
    admin = page_of_admin(browser, offering)
    row = admin.get_by_role("row").filter(has_text="drawing")
    row.get_by_role("button", name="Allow").click()
    expect(row.locator(".badge")).to_have_text("allowed")
    wait_ran(run_cell(page, 2), WAIT_MS)
    expect(output_of(run_cell(page, 3))).to_contain_text("0000ff")
    look_at_images(page, admin, offering.url, shots)
    row.get_by_role("button", name="Retire").click()
    expect(row.locator(".badge")).to_have_text("retired")
    admin.context.close()
    stop_server(page, offering.url)
    check_nothing_left(offering)


def page_of_admin(browser: Browser, cluster: LabCluster) -> Page:
    """The page Images in a separate browser."""
    context = browser.new_context(ignore_https_errors=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    log_in(page, cluster.url, FIRST_USER, cluster.password)
    page.goto(f"{cluster.url}{JOBS_PATH}images")
    return page


def look_at_images(page: Page, admin: Page, url: str, shots: Path) -> None:
    """Check that all users see the nodes with the image, but only administrators may change it."""
    page.goto(f"{url}{JOBS_PATH}images")
    admin.reload()
    for seen in (page, admin):
        row = seen.get_by_role("row").filter(has_text="drawing")
        for text in (*NODES, "tinypaint 1.4", "colours for the seminar", USER, "CPU", "MB"):
            expect(row).to_contain_text(text)
    expect(page.locator("#images").get_by_role("button")).to_have_count(0)
    admin.screenshot(path=shots / "images.png", clip=top(480))
    expect(admin.get_by_role("row").filter(has_text="drawing").get_by_role("button")).to_have_text(["Retire"])
