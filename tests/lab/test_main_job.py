"""A user's main task on three hosts, by browser: log in, start a server, train, look at the job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import FloatRect, Locator, Page, expect

from .. import messages
from ..browser.lab import JOBS_PATH, cell, open_jobs, open_notebook, output_of, run_all, wait_ran
from .cluster import LabCluster
from .pages import WAIT_MS, log_in, stop_server, wait_lab
from .remains import check_nothing_left

USER = "maria"
NODES = ("node1", "node2", "node3")


@pytest.mark.gate("the main job: a cell over three hosts")
def test_a_new_user_trains_over_three_hosts(cluster: LabCluster, page: Page, shots: Path) -> None:
    password = cluster.add_user(USER)
    log_in(page, cluster.url, USER, password)
    start_server(page, shots)
    open_notebook(page, cluster.url, USER, "quickstart.ipynb")
    train(page, shots)
    open_jobs(page, cluster.url)
    look_at_job(page)
    look_at_nodes(page, cluster.url, shots)
    stop_server(page, cluster.url)
    check_nothing_left(cluster)
    assert not cluster.services("server")


def start_server(page: Page, shots: Path) -> None:
    """Press Start on the spawn page, and follow the progress to JupyterLab."""
    node = page.get_by_label("Node")
    expect(node.locator("option")).to_have_text(["Automatic", *NODES])
    expect(node).to_have_value("")
    expect(page.get_by_label("GPUs for the notebook")).to_have_count(0)
    page.screenshot(path=shots / "spawn.png", clip=top(360))
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#progress-message")).to_contain_text(re.compile("node[123]"))
    page.get_by_text("Event log").click()
    page.screenshot(path=shots / "progress.png", clip=top(420))
    wait_lab(page, USER)


def train(page: Page, shots: Path) -> None:
    """Run the quickstart with the panel in view; check the accuracy."""
    # With the folder's list put away the panel has room, as it has on a larger screen.
    page.keyboard.press("Control+b")
    run_all(page)
    training = cell(page, 2)
    panel = training.locator(".mc-panel")
    expect(panel).to_be_visible(timeout=WAIT_MS)
    panel.scroll_into_view_if_needed()  # Run All goes to the notebook's end
    expect(panel.get_by_role("button", name="Stop")).to_be_in_viewport()
    expect(panel).to_contain_text(messages.RUNNING.format(ranks=3), timeout=WAIT_MS)
    expect(panel.locator("svg polyline")).to_be_visible(timeout=WAIT_MS)
    picture(page, training, shots / "panel-three-hosts.png")
    wait_ran(cell(page, 4), WAIT_MS)
    expect(training.locator(".mc-picture")).to_contain_text(messages.SUCCEEDED.format(ranks=3))
    match = re.search(r"trained on 3 ranks, accuracy (\d\.\d+)", output_of(cell(page, 3)).inner_text())
    assert match and float(match.group(1)) >= 0.97
    picture(page, training, shots / "trained-three-hosts.png")


def top(height: float) -> FloatRect:
    """The upper part of a page."""
    return {"x": 0, "y": 0, "width": 1280, "height": height}


def picture(page: Page, training: Locator, path: Path) -> None:
    """Take a screenshot of the whole cell, with a large enough viewport."""
    page.set_viewport_size({"width": 1280, "height": 1060})
    training.evaluate("cell => cell.scrollIntoView({block: 'start'})")
    page.screenshot(path=path)


def look_at_job(page: Page) -> None:
    """Check that the job's page names the three hosts."""
    page.get_by_role("row").filter(has_text="succeeded").get_by_role("link", name="Log").click()
    expect(page.locator("#state")).to_have_text("succeeded")
    facts = page.locator("#facts")
    for part in ("3 ranks", *NODES, USER):
        expect(facts).to_contain_text(part)
    for rank in range(3):
        page.get_by_role("tab", name=f"rank {rank}").click()
        expect(page.locator("#log")).to_contain_text(f"rank {rank} of 3 is done")


def look_at_nodes(page: Page, url: str, shots: Path) -> None:
    """Check that the page Nodes shows each host as up, and the GPUs of the job's warm gang."""
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{url}{JOBS_PATH}nodes")
    cards = page.locator("#nodes .card")
    expect(cards).to_have_count(3)
    for node in NODES:
        card = cards.filter(has_text=node)
        expect(card).to_contain_text("up")
        expect(card).to_contain_text(f"kept warm for {USER}")
        expect(card.locator("li")).to_have_count(2)
    page.screenshot(path=shots / "nodes-three-hosts.png", clip=top(280))
