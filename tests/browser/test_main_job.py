"""A new user's work in a real browser: log in, train, stop, mistype, restart and attach, come back."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from .. import messages
from ..patience import until
from .conftest import USER
from .lab import (
    JOB_MS,
    STOP_MS,
    cell,
    choose,
    interrupt_kernel,
    open_jobs,
    open_notebook,
    output_of,
    prompt,
    restart_kernel,
    run_all,
    run_cell,
    wait_ran,
)

BEFORE = "kept = 42"
LONG = """%%distribute --nodes 3 --name long
import os
import time
import minicluster as mc
for step in mc.progress(range(600), label='steps'):
    print('rank', os.environ['RANK'], 'step', step, flush=True)
    mc.log(step=step, loss=2 / (2 + step))
    time.sleep(0.1)
"""
# Its rank 0 is the last to print.
LATE_FIRST = """%%distribute --nodes 3 --name late
import os
import time
time.sleep(0 if os.environ['RANK'] != '0' else 1)
for step in range(600):
    print('rank', os.environ['RANK'], 'step', step, flush=True)
    time.sleep(0.1)
"""
SLOW_TO_END = """%%distribute --nodes 2 --name slow
import time
try:
    print('working', 'on it', flush=True)
    time.sleep(60)
finally:
    time.sleep(2)
"""
AFTER = "print('kept is', kept)"
SHORT = """%%distribute --nodes 2
import minicluster as mc
for step in range(5):
    mc.log(step=step, loss=1 / (1 + step))
print('said', 'by a rank')
"""
TYPO = """%%distribute --nodes 3
import torch
total = torch.ones(3)
print(totl.sum())
"""
FAILS_ON_ONE = """%%distribute --nodes 3
import torch
import torch.distributed as dist
print('this is rank', dist.get_rank(), flush=True)
dist.barrier()
if dist.get_rank() == 2:
    raise ValueError('only mine')
dist.all_reduce(torch.ones(1))
"""
NUMBERED = """%%distribute --nodes 2 {options}
import time
for number in range({count}):
    print(f'number-{{number:02}}', flush=True)
    time.sleep(0.1)
answer = number * 2
"""


def test_the_quickstart_trains_on_three_ranks_with_the_panel_in_view(page, site, shots):
    open_notebook(page, site.url, USER, "quickstart.ipynb")
    # With the folder's list put away the panel has room, as it has on a larger screen.
    page.keyboard.press("Control+b")
    run_all(page)
    training = cell(page, 2)
    panel = training.locator(".mc-panel")
    expect(panel).to_be_visible(timeout=JOB_MS)
    panel.scroll_into_view_if_needed()  # Run All goes to the notebook's end
    expect(panel.get_by_role("button", name="Stop")).to_be_in_viewport()
    expect(panel).to_contain_text(messages.RUNNING.format(ranks=3), timeout=JOB_MS)
    wait_ran(cell(page, 4))
    expect(panel).to_have_count(0)
    expect(training.locator(".mc-picture")).to_contain_text(messages.SUCCEEDED.format(ranks=3))
    expect(training.locator(".mc-picture img[alt^='Plot of']")).to_be_visible()
    text = output_of(cell(page, 3)).inner_text()
    assert float(re.search(r"trained on 3 ranks, accuracy (\d\.\d+)", text).group(1)) >= 0.97
    expect(output_of(cell(page, 4)).get_by_role("img")).to_be_visible()
    # Taller than others, so that the whole cell is seen with its picture.
    page.set_viewport_size({"width": 1280, "height": 1060})
    training.evaluate("cell => cell.scrollIntoView({block: 'start'})")
    page.screenshot(path=shots / "quickstart.png")


@pytest.mark.full("in the gate test_panels_again opens a saved notebook")
def test_a_saved_notebook_shows_the_end_state_without_a_kernel(page, session, site):
    site.put_notebook("saved.ipynb", SHORT)
    open_notebook(page, site.url, USER, "saved.ipynb")
    wait_ran(run_cell(page, 0))
    choose(page, "File", "Save Notebook")
    # The panel's own save may end before this one: JupyterLab then calls the notebook saved, too.
    until(lambda: {"text/html", "text/plain"} in saved_kinds(site))
    page.close()
    assert not any("application/vnd.jupyter.widget-view+json" in found for found in saved_kinds(site))
    later = session.new_page()
    open_notebook(later, site.url, USER, "saved.ipynb")
    picture = cell(later, 0).locator(".mc-picture")
    expect(picture).to_contain_text(messages.SUCCEEDED.format(ranks=2))
    expect(picture).to_contain_text("said by a rank")
    expect(picture.locator("img[alt^='Plot of']")).to_be_visible()


def saved_kinds(site):
    """Return the MIME types of each output of the notebook's first cell, from the file on disk."""
    return [set(output.get("data", ())) for output in site.read_notebook("saved.ipynb").cells[0].outputs]


def test_the_stop_button_ends_a_long_cell_and_the_kernel_lives_on(page, site, shots):
    site.put_notebook("stop.ipynb", BEFORE, LONG, AFTER)
    open_notebook(page, site.url, USER, "stop.ipynb")
    page.keyboard.press("Control+b")
    wait_ran(run_cell(page, 0))
    long = run_cell(page, 1)
    panel = long.locator(".mc-panel")
    expect(panel).to_contain_text("rank 0 step 20", timeout=JOB_MS)
    expect(panel.get_by_role("progressbar")).to_be_visible()
    expect(panel.locator("svg polyline")).to_be_visible()
    panel.get_by_role("tab", name="rank 2").click()
    expect(panel.get_by_role("tabpanel")).to_contain_text("rank 2 step 20")
    page.screenshot(path=shots / "panel.png")
    panel.get_by_role("button", name="Stop").click()
    wait_ran(long, STOP_MS)
    picture = long.locator(".mc-picture")
    expect(picture).to_contain_text(messages.STOPPED.format(ranks=3))
    expect(picture).to_contain_text("rank 0 step 20")
    expect(output_of(long)).to_contain_text(re.compile(r"Stopped: job \d+ was stopped"))
    expect(output_of(run_cell(page, 2))).to_contain_text("kept is 42")


@pytest.mark.full("tests/hub/test_kernel_ends has it without a page")
def test_the_kernels_interrupt_stops_the_job_too(page, site):
    site.put_notebook("interrupt.ipynb", BEFORE, LATE_FIRST, AFTER)
    open_notebook(page, site.url, USER, "interrupt.ipynb")
    wait_ran(run_cell(page, 0))
    long = run_cell(page, 1)
    # No rank was selected, so the panel switches to rank 0's output once there is some.
    expect(long.locator(".mc-panel")).to_contain_text("rank 0 step 5", timeout=JOB_MS)
    interrupt_kernel(page)
    wait_ran(long, STOP_MS)
    expect(long.locator(".mc-picture")).to_contain_text(messages.STOPPED.format(ranks=3))
    expect(output_of(run_cell(page, 2))).to_contain_text("kept is 42")


@pytest.mark.full("in the gate the button is pressed once")
def test_a_second_interrupt_neither_hastens_the_end_nor_hurts_the_kernel(page, site):
    site.put_notebook("twice.ipynb", BEFORE, SLOW_TO_END, AFTER)
    open_notebook(page, site.url, USER, "twice.ipynb")
    wait_ran(run_cell(page, 0))
    slow = run_cell(page, 1)
    expect(output_of(slow)).to_contain_text("working on it", timeout=JOB_MS)
    # The message is shown for two seconds only, so record all that the cell shows from here on.
    slow.evaluate(
        "cell => new MutationObserver(() => (window.shown = `${window.shown ?? ''}${cell.textContent}`))"
        ".observe(cell, { childList: true, subtree: true, characterData: true })"
    )
    interrupt_kernel(page)
    interrupt_kernel(page)
    page.wait_for_function("window.shown?.includes('Ranks have 4 s to end by themselves')", timeout=JOB_MS)
    wait_ran(slow, STOP_MS)
    expect(slow.locator(".mc-picture")).to_contain_text(messages.STOPPED.format(ranks=2))
    expect(output_of(run_cell(page, 2))).to_contain_text("kept is 42")


@pytest.mark.full("test_client_magics has it without a page")
def test_a_typo_is_raised_in_the_notebook_with_the_cells_own_line(page, site, shots):
    site.put_notebook("typo.ipynb", BEFORE, TYPO, AFTER)
    open_notebook(page, site.url, USER, "typo.ipynb")
    run_all(page)
    wrong = cell(page, 1)
    wait_ran(wrong)
    shown = output_of(wrong)
    expect(shown).to_contain_text("DistributedCellError")
    expect(shown).to_contain_text("name 'totl' is not defined")
    expect(shown).to_contain_text(re.compile(r"Cell In\[2\].*line 4"))
    expect(shown).to_contain_text("print(totl.sum())")
    page.keyboard.press("Control+b")
    page.set_viewport_size({"width": 1280, "height": 640})
    wrong.evaluate("cell => cell.scrollIntoView({block: 'start'})")
    page.screenshot(path=shots / "error.png")
    # Run All stopped at this cell.
    expect(prompt(cell(page, 2))).to_have_text("[ ]:")
    expect(output_of(run_cell(page, 2))).to_contain_text("kept is 42")


def test_the_rank_that_failed_is_the_one_that_is_opened(page, site):
    site.put_notebook("fails.ipynb", FAILS_ON_ONE)
    open_notebook(page, site.url, USER, "fails.ipynb")
    wrong = run_cell(page, 0)
    wait_ran(wrong)
    expect(output_of(wrong)).to_contain_text("Rank 2 on node-3: ValueError: only mine")
    opened = wrong.locator(".mc-picture details[open]")
    expect(opened).to_have_count(1)
    expect(opened).to_contain_text("this is rank 2")
    expect(opened).to_contain_text("ValueError: only mine")


@pytest.mark.full("test_another_kernel has it without a page")
def test_after_a_kernel_restart_attach_brings_the_log_and_the_result(page, site):
    counting = NUMBERED.format(options="--detach --name counting", count=20)
    site.put_notebook("attach.ipynb", counting, "", "print('answer is', answer)")
    open_notebook(page, site.url, USER, "attach.ipynb")
    detached = run_cell(page, 0)
    wait_ran(detached)
    number = re.search(r"[Jj]ob (\d+)", output_of(detached).inner_text()).group(1)
    restart_kernel(page)
    cell(page, 1).locator(".cm-content").click()
    page.keyboard.insert_text(f"%distribute attach {number}")
    attached = run_cell(page, 1)
    wait_ran(attached)
    for line in range(20):
        expect(attached.locator(".mc-picture")).to_contain_text(f"number-{line:02}")
    expect(output_of(run_cell(page, 2))).to_contain_text("answer is 38")


@pytest.mark.full("in the gate a page is reloaded, and a kernel killed")
def test_closing_the_browser_changes_nothing(page, session, site, tmp_path):
    seen = tmp_path / "seen"
    wait = f"import os\nwhile not os.path.exists({str(seen)!r}):\n    time.sleep(0.1)\n"
    site.put_notebook("closed.ipynb", NUMBERED.format(options="--name closed", count=60) + wait)
    open_notebook(page, site.url, USER, "closed.ipynb")
    expect(output_of(run_cell(page, 0))).to_contain_text("number-02", timeout=JOB_MS)
    page.close()
    later = session.new_page()
    open_jobs(later, site.url)
    row = later.get_by_role("row").filter(has_text="closed")
    expect(row).to_contain_text("running")
    seen.touch()
    expect(row).to_contain_text("succeeded", timeout=JOB_MS)
    row.get_by_role("link", name="Log").click()
    log = later.locator("#log")
    expect(log).to_contain_text("number-59")
    assert log.inner_text().split() == [f"number-{line:02}" for line in range(60)]
