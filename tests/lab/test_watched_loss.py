"""Somebody watches the panel while the node of rank 0 loses its cable, and while it is plugged in again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect

from ..browser import chromium
from ..browser.lab import open_notebook, run_cell
from .cluster import LabCluster
from .machines.processes import wait_for
from .recovering import TRAINING

USER = "wanda"
WAIT_MS = 180_000
BUSY = "%%distribute --nodes 1 --gpus-per-node 2 --detach --name busy\nimport time\nwhile True: time.sleep(1)"
"""Keeps the first machine's GPUs, so that rank 0 is not beside the platform."""
STOP_ALL = """
from minicluster.client import Service
service = Service.from_environment()
for job in service.jobs():
    if not job.state.terminal:
        service.stop(job.id)
"""
CELL = "%%distribute --nodes 1:2 --name training" + TRAINING.replace(
    "        print(", "        mc.log(step=step, loss=loss)\n        print("
)


@pytest.fixture(scope="module")
def browser(needs: Callable[[object, str], None]) -> Iterator[Browser]:
    needs(chromium.program(), chromium.MISSING)
    with chromium.browser() as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(ignore_https_errors=True, viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


def test_the_panel_tells_a_lost_node_and_goes_on(cluster: LabCluster, page: Page, shots: Path) -> None:
    start_server(page, cluster)
    put_notebook(cluster, "lost.ipynb", BUSY, CELL, STOP_ALL)
    open_notebook(page, cluster.url, USER, "lost.ipynb")
    page.keyboard.press("Control+b")
    run_cell(page, 0)
    panel = run_cell(page, 1).locator(".mc-panel")
    expect(panel).to_contain_text("Running on 2 ranks", timeout=WAIT_MS)
    expect(panel.locator("svg polyline")).to_be_visible(timeout=WAIT_MS)
    first = re.search(r"node\d", panel.locator(".mc-where").inner_text())
    victim = next(node for node in cluster.lab.nodes if first and node.name == first[0])
    assert victim is not cluster.first
    victim.cut()
    try:
        expect(panel).to_contain_text("Running on 1 rank", timeout=WAIT_MS)
        output = panel.locator(".mc-output")
        expect(output).to_contain_text("--- attempt 2 ---", timeout=WAIT_MS)
        expect(output).to_contain_text(re.compile(r"attempt 2 ---(.|\n)*resumed [1-9]"), timeout=WAIT_MS)
        expect(panel.locator(".mc-where")).not_to_contain_text(victim.name)
        panel.scroll_into_view_if_needed()
        page.screenshot(path=shots / "lost-node.png")
    finally:
        victim.plug()
    before = output.inner_text()
    page.wait_for_timeout(1000)
    assert output.inner_text() != before, "it goes on"
    panel.get_by_role("button", name="Stop").click()
    expect(page.locator(".mc-picture")).to_contain_text("Stopped", timeout=WAIT_MS)
    end(page, cluster)


def start_server(page: Page, cluster: LabCluster) -> None:
    """Log in and start on the first machine, whose cable stays where it is."""
    password = cluster.add_user(USER)
    page.goto(cluster.url)
    page.fill("#username_input", USER)
    page.fill("#password_input", password)
    page.click("#login_submit")
    page.get_by_label("Node").select_option(cluster.first.name)
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(f"**/user/{USER}/lab**", timeout=WAIT_MS)
    expect(page.locator("#jp-main-dock-panel")).to_be_visible(timeout=WAIT_MS)


def put_notebook(cluster: LabCluster, name: str, *cells: str) -> None:
    """Write a notebook into the user's home, as an upload would."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
    (server,) = cluster.docker("ps", "--quiet", "--filter", "label=org.minicluster.role=server")
    write = f"import os, sys; open(os.path.expanduser('~/{name}'), 'w').write(sys.argv[1])"
    cluster.docker("exec", server, "python", "-c", write, nbformat.writes(notebook))


def end(page: Page, cluster: LabCluster) -> None:
    """Stop the job that kept the machine busy, and the server."""
    run_cell(page, 2)
    wait_for(lambda: not any(cluster.remains().values()), "the jobs' tasks to go", 240, 0.5)
    page.goto(f"{cluster.url}/hub/home")
    page.get_by_role("button", name="Stop My Server").click()
    expect(page.get_by_role("button", name="Start My Server")).to_be_visible(timeout=WAIT_MS)
