"""What a new user does, in a real browser: log in, train, stop, mistype, restart and attach, come back."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from .conftest import USER
from .lab import (
    JOB_MS,
    cell,
    interrupt_kernel,
    open_notebook,
    output_of,
    restart_kernel,
    run_all,
    run_cell,
    wait_idle,
)

LONG = """%%distribute --nodes 3 --name long
import time
for step in range(3000):
    print('step', step, flush=True)
    time.sleep(0.1)
"""
TYPO = """%%distribute --nodes 3
import torch
total = torch.ones(3)
print(totl.sum())
"""
AFTER = "print('the kernel', 'lives on')"
NUMBERED = """%%distribute --nodes 2 --detach --name counting
import time
for number in range(20):
    print(f'number-{number:02}', flush=True)
    time.sleep(0.1)
answer = number * 2
"""


def test_the_quickstart_trains_on_three_ranks_with_the_panel_in_view(page, site, shots):
    open_notebook(page, site.url, USER, "quickstart.ipynb")
    run_all(page)
    panel = page.locator(".mc-panel").first
    expect(panel).to_be_visible(timeout=JOB_MS)
    expect(panel.get_by_role("button", name="Stop")).to_be_visible()
    expect(panel).to_contain_text("running", timeout=JOB_MS, ignore_case=True)
    panel.scroll_into_view_if_needed()
    page.screenshot(path=shots / "panel.png")
    wait_idle(page)
    accuracy = page.locator(".jp-OutputArea-output", has_text=re.compile(r"accuracy 0\.\d+")).last
    expect(accuracy).to_be_visible(timeout=JOB_MS)
    value = float(re.search(r"accuracy (0\.\d+)", accuracy.inner_text()).group(1))
    assert value >= 0.97
    expect(page.locator(".mc-panel")).to_have_count(0)
    page.screenshot(path=shots / "quickstart.png")


def test_a_saved_notebook_shows_the_end_state_without_a_kernel(page, site):
    open_notebook(page, site.url, USER, "quickstart.ipynb")
    run_all(page)
    wait_idle(page)
    page.keyboard.press("Control+s")
    expect(page.locator(".jp-mod-dirty")).to_have_count(0)
    kinds = [
        set(output.get("data", {}))
        for saved in site.read_notebook("quickstart.ipynb").cells
        if saved.source.startswith("%%distribute")
        for output in saved.outputs
        if "data" in output
    ]
    assert any({"text/html", "text/plain"} <= found for found in kinds)
    assert not any("application/vnd.jupyter.widget-view+json" in found for found in kinds)


def test_the_stop_button_ends_a_long_cell_and_the_kernel_lives_on(page, site):
    site.put_notebook("stop.ipynb", LONG, AFTER)
    open_notebook(page, site.url, USER, "stop.ipynb")
    long = run_cell(page, 0)
    expect(long).to_contain_text("step 5", timeout=JOB_MS)
    long.get_by_role("button", name="Stop").click()
    wait_idle(page, 20_000)
    expect(long).to_contain_text("stopped", ignore_case=True)
    expect(long).to_contain_text("step 5"), "what was printed stays"
    expect(output_of(run_cell(page, 1))).to_contain_text("the kernel lives on", timeout=10_000)


def test_the_kernels_interrupt_stops_the_job_too(page, site):
    site.put_notebook("interrupt.ipynb", LONG, AFTER)
    open_notebook(page, site.url, USER, "interrupt.ipynb")
    long = run_cell(page, 0)
    expect(long).to_contain_text("step 5", timeout=JOB_MS)
    interrupt_kernel(page)
    wait_idle(page, 20_000)
    expect(long).to_contain_text("stopped", ignore_case=True)
    expect(output_of(run_cell(page, 1))).to_contain_text("the kernel lives on", timeout=10_000)


def test_a_typo_is_raised_in_the_notebook_with_the_cells_own_line(page, site):
    site.put_notebook("typo.ipynb", TYPO, AFTER)
    open_notebook(page, site.url, USER, "typo.ipynb")
    run_all(page)
    wait_idle(page)
    wrong = cell(page, 0)
    expect(wrong).to_contain_text("name 'totl' is not defined")
    expect(wrong).to_contain_text("print(totl.sum())")
    expect(cell(page, 1)).not_to_contain_text("the kernel lives on"), "Run All stops at the error"


def test_after_a_kernel_restart_attach_brings_the_log_and_the_result(page, site):
    site.put_notebook("attach.ipynb", NUMBERED, "%distribute attach JOB", "print('answer is', answer)")
    open_notebook(page, site.url, USER, "attach.ipynb")
    detached = run_cell(page, 0)
    wait_idle(page)
    expect(detached).to_contain_text(re.compile(r"[Jj]ob \d+"))
    number = re.search(r"[Jj]ob (\d+)", output_of(detached).inner_text()).group(1)
    restart_kernel(page)
    cell(page, 1).locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.type(f"%distribute attach {number}")
    page.keyboard.press("Control+Enter")
    wait_idle(page)
    attached = cell(page, 1)
    for line in ("number-00", "number-19"):
        expect(attached).to_contain_text(line)
    expect(output_of(run_cell(page, 2))).to_contain_text("answer is 38", timeout=10_000)


def test_closing_the_browser_changes_nothing(session, site):
    site.put_notebook("closed.ipynb", NUMBERED.replace(" --detach", "").replace("counting", "closed"))
    page = session.new_page()
    open_notebook(page, site.url, USER, "closed.ipynb")
    run_cell(page, 0)
    expect(cell(page, 0)).to_contain_text("number-02", timeout=JOB_MS)
    page.close()
    page = session.new_page()
    page.goto(f"{site.url}/services/minicluster/")
    row = page.get_by_role("row").filter(has_text="closed")
    expect(row).to_contain_text("succeeded", timeout=JOB_MS, ignore_case=True)
    page.close()
