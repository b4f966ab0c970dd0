"""The panel in a browser while rank 0's node is unplugged and plugged in again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ... import messages
from ...browser.lab import open_notebook, run_cell, stop_open_jobs
from ..cluster import LabCluster
from ..machines.processes import wait_for
from ..pages import WAIT_MS, put_notebook, start_server, stop_server
from ..training import EVERY, TRAINING
from .inject import cable_out

USER = "wanda"
BUSY = "%%distribute --nodes 1 --gpus-per-node 2 --detach --name busy\nimport time\nwhile True: time.sleep(1)"
"""Occupies the first machine's GPUs, so that rank 0 is not on the platform's machine."""
CELL = "%%distribute --nodes 1:2 --name training" + TRAINING.replace(
    "        print(", "        mc.log(step=step, loss=loss)\n        print("
)


@pytest.fixture
def wanda(ready: LabCluster, page: Page) -> Iterator[Page]:
    """A logged-in user with a server on the first machine, which keeps its cable; removed at the end."""
    start_server(page, ready, USER, node=ready.first.name)
    yield page
    stop_open_jobs(page, ready.url)
    wait_for(lambda: not ready.remains(), "the jobs' tasks to go", 240, 0.5)
    stop_server(page, ready.url)


def test_the_panel_tells_a_lost_node_and_goes_on(ready: LabCluster, wanda: Page, shots: Path) -> None:
    cluster, page = ready, wanda
    put_notebook(cluster, "lost.ipynb", BUSY, CELL)
    open_notebook(page, cluster.url, USER, "lost.ipynb")
    page.keyboard.press("Control+b")
    run_cell(page, 0)
    panel = run_cell(page, 1).locator(".mc-panel")
    expect(panel).to_contain_text(messages.RUNNING.format(ranks=2), timeout=WAIT_MS)
    expect(panel.locator("svg polyline")).to_be_visible(timeout=WAIT_MS)
    # By this step, the other node has a snapshot.
    output = panel.locator(".mc-output")
    expect(output).to_contain_text(re.compile(rf"step {10 * EVERY} "), timeout=WAIT_MS)
    first = re.search(r"node\d", panel.locator(".mc-where").inner_text())
    victim = next(node for node in cluster.lab.nodes if first and node.name == first[0])
    assert victim is not cluster.first
    with cable_out(cluster, victim):
        expect(panel).to_contain_text("Running on 1 rank", timeout=WAIT_MS)
        expect(output).to_contain_text(messages.NEXT_ATTEMPT.format(number=2), timeout=WAIT_MS)
        expect(output).to_contain_text(re.compile(r"attempt 2 ---(.|\n)*resumed [1-9]"), timeout=WAIT_MS)
        expect(panel.locator(".mc-where")).not_to_contain_text(victim.name)
        panel.scroll_into_view_if_needed()
        page.screenshot(path=shots / "lost-node.png")
    before = output.inner_text()
    expect(output, "it goes on").not_to_have_text(before, use_inner_text=True, timeout=WAIT_MS)
    panel.get_by_role("button", name="Stop").click()
    expect(page.locator(".mc-picture")).to_contain_text("Stopped", timeout=WAIT_MS)
