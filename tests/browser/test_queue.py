"""The page Queue: an administrator compares another policy with past jobs, and activates it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .. import messages
from .conftest import USER
from .lab import JOB_MS, JOBS_PATH, open_notebook, run_cell, wait_ran

FIRST = """%%distribute --nodes 2 --name holds --timeout 1h --detach
import time
time.sleep(3600)
"""
LARGE = """%%distribute --nodes 3 --name large --detach
print("large")
"""
SMALL = """%%distribute --nodes 1 --name small --timeout 1m --priority 40 --detach
print("small")
"""
LATEST = """
from minicluster_hub.scheduling.base import Grant, Plan

def plan(snapshot):
    last = sorted(snapshot.waiting, key=lambda job: -job.job_id)
    kept = [Grant(job.job_id, job.replicas) for job in snapshot.running]
    return Plan((*kept, *(Grant(job.job_id, job.min_replicas) for job in last)))
"""


@pytest.mark.full("tests/service/api/people/test_policy has it without a page")
def test_an_admin_changes_the_policy_and_sees_what_comes_of_it(page, session, site, shots):
    queue = session.new_page()
    queue.goto(f"{site.url}{JOBS_PATH}queue")
    expect(queue.locator("#active-policy")).to_have_text("backfill, pack")
    activate(queue, "fifo")
    site.put_notebook("queue.ipynb", FIRST, LARGE, SMALL)
    open_notebook(page, site.url, USER, "queue.ipynb")
    for index in range(3):
        wait_ran(run_cell(page, index))
    small = queue.get_by_role("row").filter(has_text="small")
    expect(small).to_contain_text(messages.AHEAD_OF_IT, timeout=JOB_MS)
    expect(queue.locator("#share")).to_contain_text(messages.FAIR_SHARE_NOW, timeout=JOB_MS)
    expect(queue.locator("#my-jobs")).to_contain_text("(small): waits for job", timeout=JOB_MS)
    activate(queue, "backfill")
    expect(small).to_have_count(0, timeout=JOB_MS)
    expect(queue.get_by_role("row").filter(has_text="large")).to_be_visible()

    rows = queue.locator("#what-if-rows tbody tr")
    expect(rows).to_have_count(0)
    compare = queue.get_by_role("button", name="How would they have scheduled")
    shown = queue.locator("#what-if-told")
    for _ in range(30):
        compare.click()
        expect(compare).to_be_enabled(timeout=JOB_MS)
        if not shown.inner_text().startswith("No job"):
            break
        queue.wait_for_timeout(500)
    expect(rows.first).to_contain_text("what really happened")
    expect(queue.locator("#what-if-rows [data-policy=srtf]")).to_be_visible()
    expect(queue.locator("#what-if-assumed")).to_contain_text("time limits end no job")
    queue.screenshot(path=shots / "queue.png", full_page=True)
    queue.reload()
    expect(queue.locator(f"#usage [data-owner={USER}]")).to_be_visible()
    with queue.expect_download() as loading:
        queue.get_by_role("link", name="as a file").click()
    assert loading.value.path().read_text().startswith("owner,gpu_hours,slot_hours")


def activate(queue, policy):
    queue.locator("#policies").select_option(policy)
    queue.get_by_role("button", name="Activate").click()
    expect(queue.locator("#active-policy")).to_have_text(f"{policy}, pack")


def test_an_admin_activates_a_policy_of_the_labs_own(page, site):
    page.goto(f"{site.url}{JOBS_PATH}queue")
    expect(page.locator("#active-policy")).to_have_text("backfill, pack")
    expect(page.locator("input[type=file]")).to_have_count(0)
    folder = site.cluster.data / "policies"
    folder.mkdir()
    (folder / "wrong.py").write_text("def plan(snapshot:")
    (folder / "latest.py").write_text(LATEST)
    page.reload()
    page.locator("#policies").select_option("wrong")
    page.get_by_role("button", name="Activate").click()
    expect(page.get_by_role("alert")).to_contain_text(f"wrong {messages.CANNOT_BE_ACTIVATED}SyntaxError")
    expect(page.locator("#active-policy")).to_have_text("backfill, pack")
    activate(page, "latest")
    expect(page.get_by_role("alert")).to_be_hidden()
    activate(page, "backfill")
