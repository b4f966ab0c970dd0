"""The service's own pages: live without reload, in the hub's look."""

from __future__ import annotations

from playwright.sync_api import expect

from .conftest import USER
from .lab import JOB_MS, open_notebook, run_cell, wait_idle

TALKING = """%%distribute --nodes 3 --name talking
import time
for step in range(3000):
    print('step', step, '<script>document.title = "broken"</script>', flush=True)
    time.sleep(0.1)
"""


def test_jobs_and_nodes_change_without_a_reload_and_stop_works_there(session, site, shots):
    site.put_notebook("talking.ipynb", TALKING)
    jobs, nodes, notebook = session.new_page(), session.new_page(), session.new_page()
    jobs.goto(f"{site.url}/services/minicluster/")
    nodes.goto(f"{site.url}/services/minicluster/nodes")
    expect(nodes.get_by_text("node-3")).to_be_visible()
    open_notebook(notebook, site.url, USER, "talking.ipynb")
    cell = run_cell(notebook, 0)
    row = jobs.get_by_role("row").filter(has_text="talking")
    expect(row).to_contain_text("running", timeout=JOB_MS, ignore_case=True)
    expect(row).to_contain_text("%distribute attach")
    expect(nodes.locator("main, #main, body").first).to_contain_text(USER)
    jobs.screenshot(path=shots / "jobs.png")
    nodes.screenshot(path=shots / "nodes.png")
    row.get_by_role("link").first.click()
    expect(jobs.get_by_text("step 3", exact=False).first).to_be_visible(timeout=JOB_MS)
    assert "broken" not in jobs.title()
    jobs.screenshot(path=shots / "job.png")
    jobs.get_by_role("button", name="Stop").click()
    expect(jobs.locator("body")).to_contain_text("stopped", timeout=20_000, ignore_case=True)
    wait_idle(notebook, 20_000)
    expect(cell).to_contain_text("stopped", ignore_case=True)
    for page in (jobs, nodes, notebook):
        page.close()


def test_a_stranger_is_sent_to_the_login(chromium, site):
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{site.url}/services/minicluster/")
    expect(page.locator("#username_input")).to_be_visible()
    context.close()
