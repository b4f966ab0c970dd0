"""The page of a run while it trains: curves, pictures, use of its ranks and where the time goes, live."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, expect

from .conftest import USER, Site
from .lab import JOB_MS, JOBS_PATH, open_notebook, run_cell
from .test_runs import chart, is_narrow

TRAINS = """%%distribute --nodes 2 --name live-run
import time, torch
import minicluster as mc
from torch.utils.data import DataLoader, TensorDataset
model, optimizer, loader = mc.prepare(
    model := torch.nn.Linear(8, 1),
    torch.optim.SGD(model.parameters(), 0.01),
    DataLoader(TensorDataset(torch.rand(64, 8), torch.rand(64, 1)), batch_size=8),
)
for step in range(2000):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    mc.log({"train": {"loss": loss}}, step=step)
    if step % 10 == 0 and mc.rank() == 0:
        mc.log(sample=mc.Image(torch.rand(16, 16)), weights=mc.Histogram(torch.randn(99)), step=step)
        mc.log(worst=mc.Table([[3, 0.5], [7, 0.25]], ["digit", "loss"]), step=step)
    time.sleep(0.05)
"""
COLOURS = """[...document.querySelectorAll("#use-charts .mc-plot")].every(
  ({ chart }) => chart.uplot.axes.every((axis) => axis.stroke() && axis.grid.stroke())
)"""


def test_a_runs_page_grows_while_it_trains(
    page: Page, session: BrowserContext, site: Site, shots: Path
) -> None:
    site.put_notebook("live-run.ipynb", TRAINS)
    open_notebook(page, site.url, USER, "live-run.ipynb")
    run_cell(page, 0)
    run = session.new_page()
    run.goto(f"{site.url}{JOBS_PATH}runs")
    run.locator("#runs").get_by_role("link", name="live-run").first.click(timeout=JOB_MS)
    run.evaluate("window.mark = 1")
    loss = chart(run, "train/loss")
    loss.get_by_text("As a table").click(timeout=JOB_MS)
    points = loss.locator("tbody td").first
    expect(points).to_have_text(re.compile(r"^[1-9]\d*$"), timeout=JOB_MS)
    expect(points).not_to_have_text(points.inner_text(), timeout=JOB_MS)

    media = run.locator("#media-names")
    expect(media.locator("summary", has_text="sample")).to_be_visible(timeout=JOB_MS)
    expect(media.locator("img")).to_have_attribute(
        "alt", re.compile(r"^sample, step \d+, rank 0"), timeout=JOB_MS
    )
    expect(media.get_by_role("img", name=re.compile(r"^weights, .*bins$"))).to_be_visible()
    expect(media.get_by_role("cell", name="0.25")).to_be_visible()
    slider = media.get_by_role("slider", name="sample: which one")
    expect(slider).to_have_attribute("max", re.compile("[1-9]"), timeout=JOB_MS)
    slider.focus()
    run.keyboard.press("Home")
    expect(media.locator("img")).to_have_attribute("alt", re.compile(r"^sample, step 0, rank 0 \(1 of"))

    speed = run.locator("#speed")
    expect(speed.get_by_role("row").filter(has_text="rank 1")).to_contain_text("%", timeout=JOB_MS)
    expect(run.locator("#speed-sentence")).not_to_be_empty()
    speed.get_by_label("steps of the ranks").fill("1")
    speed.get_by_role("button", name="Profile").click()
    expect(run.locator("#profile-said")).to_contain_text("The tables come below")
    expect(media.locator("summary", has_text="profile/time")).to_be_visible(timeout=JOB_MS)
    memory = chart(run, "Memory (GB)")
    memory.get_by_text("As a table").click(timeout=JOB_MS)
    expect(memory.locator("tbody th")).to_have_text(["rank 0", "rank 1"], timeout=JOB_MS)
    expect(chart(run, "CPU (% of a core)").locator("canvas")).to_be_visible()
    assert run.evaluate(COLOURS), "a chart was drawn before it was in the page, whose style has its colours"
    assert run.evaluate("window.mark === 1"), "the page was loaded again"
    run.screenshot(path=shots / "run-live.png", full_page=True)
    assert is_narrow(run)
    run.get_by_role("button", name="Stop").click()
    expect(run.locator("#state, .badge").first).to_contain_text("stopped", timeout=JOB_MS)
    run.close()
