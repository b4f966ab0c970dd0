"""The service's own pages: live without reload, in the hub's look; what users write stays text."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from .conftest import USER
from .lab import JOB_MS, JOBS_PATH, STOP_MS, open_jobs, open_notebook, output_of, run_cell, wait_ran

# A script that is put in as HTML does not run, an image's handler does: both are tried.
EVIL = """<script>window.broken = 1</script><img src=x onerror="window.broken = 1">"""
TALKING = f"""%%distribute --nodes 2 --name talking
import time
for step in range(600):
    print('step', step, {EVIL!r}, flush=True)
    time.sleep(0.1)
"""
SHORT = """%%distribute --nodes 3 --name digits
print('done')
"""
WRONG = f"""%%distribute --nodes 2 --name wrong
raise ValueError({EVIL!r})
"""


def mark(page: Page) -> None:
    """Leave a mark that a reload would wipe out."""
    page.evaluate("window.mark = 1")


def assert_same_and_sound(page: Page) -> None:
    """Nothing reloaded the page since its mark, and nobody's text has run in it."""
    assert page.evaluate("[window.mark, window.broken]") == [1, None]


def test_jobs_and_nodes_change_without_a_reload_and_stop_works_there(page, session, site, shots):
    site.put_notebook("talking.ipynb", SHORT, WRONG, TALKING)
    notebook, jobs, nodes = page, session.new_page(), session.new_page()
    open_jobs(jobs, site.url)
    nodes.goto(f"{site.url}{JOBS_PATH}nodes")
    expect(nodes.get_by_text("node-3")).to_be_visible()
    for live in (jobs, nodes):
        mark(live)
    open_notebook(notebook, site.url, USER, "talking.ipynb")
    mark(notebook)
    for index in (0, 1):
        wait_ran(run_cell(notebook, index))
    talking = run_cell(notebook, 2)
    row = jobs.get_by_role("row").filter(has_text="talking")
    expect(row).to_contain_text("running", timeout=JOB_MS)
    expect(row).to_contain_text("%distribute attach")
    expect(jobs.get_by_role("row").filter(has_text="wrong")).to_contain_text("<script>")
    expect(nodes.locator(".card").first).to_contain_text(f"of {USER}")
    jobs.screenshot(path=shots / "jobs.png")
    nodes.screenshot(path=shots / "nodes.png")
    expect(output_of(talking)).to_contain_text("step 5 <script>")
    assert_same_and_sound(jobs)

    row.get_by_role("link", name="Log").click()
    expect(jobs.locator("#log")).to_contain_text("step 0 <script>")
    mark(jobs)
    expect(jobs.locator("#log")).to_contain_text("step 25 <script>", timeout=JOB_MS)
    jobs.screenshot(path=shots / "job.png")
    jobs.get_by_role("button", name="Stop").click()
    expect(jobs.locator("#state")).to_have_text("stopped", timeout=STOP_MS)
    wait_ran(talking, STOP_MS)
    expect(talking.locator(".mc-picture")).to_contain_text("Stopped on 2 ranks")
    expect(nodes.locator("#nodes")).not_to_contain_text("job ")
    for live in (jobs, nodes, notebook):
        assert_same_and_sound(live)


def test_a_stranger_is_sent_to_the_login(chromium, site):
    context = chromium.new_context()
    page = context.new_page()
    for path in (JOBS_PATH, f"{JOBS_PATH}nodes", f"{JOBS_PATH}jobs/1", f"/user/{USER}/lab"):
        page.goto(site.url + path)
        expect(page.locator("#username_input")).to_be_visible()
    context.close()
