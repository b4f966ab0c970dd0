"""A session in JupyterLab: a cell's panel, its Stop, a reload of the page, a restart of the kernel."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from .conftest import USER, Site
from .lab import (
    JOB_MS,
    STOP_MS,
    cell,
    choose,
    open_notebook,
    output_of,
    restart_kernel,
    run_cell,
    wait_ran,
)

CELLS = (
    "%distribute up --nodes 2",
    "%%distribute\nkept = 42",
    "%%distribute\nimport time, minicluster as mc\nfor step in range(3000):\n"
    "    mc.log(step=step, loss=1 / (1 + step))\n    print('step', step, flush=True)\n    time.sleep(0.1)",
    "%%distribute --pull step,kept\npass",
    "print('after', kept, 'at', step)",
)


def test_a_session_s_cell_has_a_panel_that_outlives_the_page_and_the_kernel(page: Page, site: Site) -> None:
    site.put_notebook("session.ipynb", *CELLS)
    open_notebook(page, site.url, USER, "session.ipynb")
    opened = run_cell(page, 0)
    wait_ran(opened)
    expect(output_of(opened)).to_contain_text(re.compile(r"2 ranks on node-\d, node-\d"))
    number = re.search(r"Session (\d+):", output_of(opened).inner_text())
    assert number is not None
    wait_ran(run_cell(page, 1))
    panel = run_cell(page, 2).locator(".mc-panel")
    expect(panel).to_contain_text("step 3", timeout=JOB_MS)
    expect(panel).to_contain_text(f"job {number[1]} · cell 3")
    expect(panel.locator("polyline")).to_have_count(1)
    choose(page, "File", "Save Notebook")
    expect(page.locator(".jp-mod-dirty")).to_have_count(0)
    page.reload()
    panel = cell(page, 2).locator(".mc-panel")
    expect(panel).to_contain_text("Running on 2 ranks", timeout=JOB_MS)
    restart_kernel(page)
    expect(panel.get_by_role("button", name="Stop")).to_be_visible()
    panel.get_by_role("button", name="Stop").click()
    expect(panel).to_contain_text("Stopped on 2 ranks", timeout=STOP_MS)
    # The session is still there, with what the interrupted cell has made.
    page.locator(".jp-Notebook").press("Escape")
    here = cell(page, 1)
    here.locator(".cm-content").fill(f"%distribute attach {number[1]}")
    run_cell(page, 1)
    expect(output_of(here)).to_contain_text(f"Session {number[1]}")
    run_cell(page, 3)
    last = run_cell(page, 4)
    expect(output_of(last)).to_contain_text(re.compile(r"after 42 at \d+"), timeout=JOB_MS)
