"""TensorBoard at a click on a run that wrote files for it, in the user's own notebook server."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from .conftest import USER, Site
from .lab import JOB_MS, JOBS_PATH, START_MS, open_notebook, run_cell, wait_ran

WRITES = """%%distribute --nodes 1 --name {name}
import minicluster as mc
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter(mc.output() / "board") as writer:
    for step in range(20):
        writer.add_scalar("loss", 1 / (1 + step), step)
"""
NAMES = ("board-first", "board-second")


@pytest.mark.full("tests/unit/client/test_tensorboard has the program without a browser")
def test_runs_are_opened_in_tensorboard_and_can_be_compared(
    page: Page, session: BrowserContext, site: Site
) -> None:
    site.put_notebook("board.ipynb", *(WRITES.format(name=name) for name in NAMES))
    open_notebook(page, site.url, USER, "board.ipynb")
    for index in range(2):
        wait_ran(run_cell(page, index))
    run, shown = session.new_page(), []
    for name in NAMES:
        run.goto(f"{site.url}{JOBS_PATH}runs")
        run.locator("#runs").get_by_role("link", name=name).first.click()
        shown.append(f"{run.url.rpartition('/')[2]}-{name}/board")
        with session.expect_page() as opened:
            run.get_by_role("link", name="Open in TensorBoard").click()
        board = opened.value
        expect(board).to_have_title("TensorBoard", timeout=START_MS)
        for one in shown:
            expect(board.get_by_text(one).first).to_be_visible(timeout=JOB_MS)
    runs = f"{site.url}/user/{USER}/minicluster/tensorboard/view/data/runs"
    assert run.request.post(runs, headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    run.close()
