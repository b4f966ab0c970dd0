"""The pages of sweeps: live, with lines by parameter and importance; on a narrow screen and by keyboard."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, expect

from .conftest import USER, Site
from .lab import JOB_MS, JOBS_PATH, open_notebook, run_cell
from .test_runs import is_narrow

EVIL = '<img src=x onerror=\\"window.broken = 1\\">'
SEARCHES = f"""%%sweep --metric loss --trials 12 --seed 3 --name digits-sweep
import time
import minicluster as mc
x = mc.suggest("x", -2.0, 2.0)
kind = mc.suggest("kind", ["plain", "{EVIL}"])
for step in range(4):
    mc.log(step=step, loss=(x - 1) ** 2 + (kind != "plain") + 1.0 / (step + 1))
    time.sleep(0.05)
"""


def test_a_sweep_is_followed_and_its_trials_are_runs(
    page: Page, session: BrowserContext, site: Site, shots: Path
) -> None:
    site.put_notebook("sweep.ipynb", SEARCHES)
    open_notebook(page, site.url, USER, "sweep.ipynb")
    sweeps = session.new_page()
    sweeps.goto(f"{site.url}{JOBS_PATH}sweeps")
    expect(sweeps.get_by_role("heading", name="Sweeps")).to_be_visible()
    sweeps.evaluate("window.mark = 1")
    run_cell(page, 0)
    row = sweeps.locator("#sweeps tbody tr").filter(has_text="digits-sweep")
    expect(row).to_contain_text("running", timeout=JOB_MS)
    assert sweeps.evaluate("window.mark === 1"), "the page was loaded again"
    row.get_by_role("link").first.click()
    trials = sweeps.locator("#trials tbody tr")
    expect(trials.filter(has_text=re.compile("complete|pruned")).first).to_be_visible(timeout=JOB_MS)
    sweeps.evaluate("window.mark = 1")
    expect(sweeps.locator("#state")).to_have_text("done", timeout=2 * JOB_MS)
    expect(trials).to_have_count(12)
    expect(sweeps.locator("#best")).to_contain_text("Best: loss = ")
    expect(sweeps.locator("#importance")).to_be_visible(timeout=JOB_MS)
    expect(sweeps.locator("#shares th").first).to_have_text("x")
    assert sweeps.evaluate("window.mark === 1"), "the page was loaded again"
    assert sweeps.evaluate("window.broken === undefined")
    lines = sweeps.locator("#lines svg [data-trial]")
    expect(lines).to_have_count(12)
    trials.first.focus()
    sweeps.keyboard.press("Enter")
    expect(trials.first).to_be_focused()
    expect(trials.first).to_have_class(re.compile("table-active"))
    sweeps.screenshot(path=shots / "sweep.png", full_page=True)
    sweeps.locator("#dark-theme-toggle").click()
    sweeps.screenshot(path=shots / "sweep-dark.png", full_page=True)
    sweeps.locator("#dark-theme-toggle").click()
    assert is_narrow(sweeps)
    trials.first.get_by_role("link").click()
    expect(sweeps).to_have_url(re.compile(r"/runs/\d+$"))
    expect(sweeps.locator("#related")).to_contain_text("a trial of sweep")
    sweeps.locator("#related a").click()
    expect(sweeps.locator("#title")).to_contain_text("digits-sweep")
    sweeps.close()
