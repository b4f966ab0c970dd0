"""The service's own pages: live without reload, in the hub's look; what users write stays text."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from .conftest import USER
from .lab import JOB_MS, JOBS_PATH, STOP_MS, open_jobs, open_notebook, output_of, run_cell, wait_ran

TALKING = """%%distribute --nodes 2 --name digits
import os
import time
for step in range(600):
    print(f"rank {os.environ['RANK']}, step {step}, loss {2 / (2 + step):.4f}", flush=True)
    time.sleep(0.1)
"""
# A script that is put in as HTML does not run, an image's handler does: both are tried.
EVIL = """<script>window.broken = 1</script><img src=x onerror="window.broken = 1">"""
WRONG = f"""%%distribute --nodes 2 --name wrong
print({EVIL!r})
raise ValueError({EVIL!r})
"""


def mark(page: Page) -> None:
    """Leave a mark that a reload would wipe out."""
    page.evaluate("window.mark = 1")


def is_marked(page: Page) -> bool:
    return page.evaluate("window.mark === 1")


def is_broken(page: Page) -> bool:
    return page.evaluate("window.broken !== undefined")


def test_jobs_and_nodes_change_without_a_reload_and_stop_works_there(page, session, site, shots):
    site.put_notebook("talking.ipynb", TALKING)
    notebook, jobs, nodes = page, session.new_page(), session.new_page()
    open_jobs(jobs, site.url)
    nodes.goto(f"{site.url}{JOBS_PATH}nodes")
    expect(nodes.get_by_text("node-3")).to_be_visible()
    for live in (jobs, nodes):
        mark(live)
    open_notebook(notebook, site.url, USER, "talking.ipynb")
    talking = run_cell(notebook, 0)
    row = jobs.get_by_role("row").filter(has_text="digits").filter(has_text="running")
    expect(row).to_be_visible(timeout=JOB_MS)
    expect(row).to_contain_text("%distribute attach")
    used = nodes.locator("#nodes .card").filter(has_text=f"of {USER}")
    expect(used).to_have_count(2)
    jobs.screenshot(path=shots / "jobs.png")
    nodes.screenshot(path=shots / "nodes.png", clip={"x": 0, "y": 0, "width": 1280, "height": 250})
    assert is_marked(jobs)

    row.get_by_role("link", name="Log").click()
    log = jobs.locator("#log")
    expect(log).to_contain_text("rank 0, step 0,")
    mark(jobs)
    jobs.get_by_role("button", name="Why does it not get on?").click()
    expect(jobs.locator("#why-sentence")).to_contain_text("All ranks make progress")
    expect(jobs.locator("#why-ranks tr")).to_have_count(2)
    expect(jobs.locator("#why-ranks")).to_contain_text("time.sleep(0.1)")
    expect(log).to_contain_text("rank 0, step 25,", timeout=JOB_MS)
    jobs.screenshot(path=shots / "job.png")
    jobs.get_by_role("button", name="Stop").click()
    expect(jobs.locator("#state")).to_have_text("stopped", timeout=STOP_MS)
    wait_ran(talking, STOP_MS)
    expect(talking.locator(".mc-picture")).to_contain_text("Stopped on 2 ranks")
    expect(used).to_have_count(0)
    assert is_marked(jobs)
    assert is_marked(nodes)


def test_what_a_cell_prints_and_raises_stays_text(page, session, site):
    site.put_notebook("wrong.ipynb", WRONG)
    open_notebook(page, site.url, USER, "wrong.ipynb")
    wrong = run_cell(page, 0)
    wait_ran(wrong)
    expect(wrong.locator(".mc-picture pre").first).to_contain_text(EVIL)
    expect(output_of(wrong)).to_contain_text(f"ValueError: {EVIL}")
    jobs = session.new_page()
    open_jobs(jobs, site.url)
    row = jobs.get_by_role("row").filter(has_text="wrong")
    expect(row).to_contain_text(f"ValueError: {EVIL}")
    assert not is_broken(jobs)
    row.get_by_role("link", name="Log").click()
    expect(jobs.locator("#log")).to_contain_text(EVIL)
    expect(jobs.locator("#error-message")).to_contain_text(EVIL)
    expect(jobs.locator("#error-traceback")).to_contain_text(EVIL)
    assert not is_broken(jobs)
    assert not is_broken(page)


def test_a_stranger_is_sent_to_the_login(chromium, site):
    context = chromium.new_context()
    page = context.new_page()
    for path in (JOBS_PATH, f"{JOBS_PATH}nodes", f"{JOBS_PATH}jobs/1", f"/user/{USER}/lab"):
        page.goto(site.url + path)
        expect(page.locator("#username_input")).to_be_visible()
    context.close()
