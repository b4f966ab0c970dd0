"""Displays of ranks in the panel, in the saved picture, and on the job's page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from ..patience import until
from .conftest import USER
from .lab import JOB_MS, JOBS_PATH, cell, open_notebook, output_of, run_cell, wait_ran

TABLE = """class Table:
    def __init__(self, rank):
        self.rank = rank
    def _repr_html_(self):
        return (f'<table><tr><th>rank</th><th>share</th></tr><tr><td>{self.rank}</td><td>1/3</td></tr>'
                '</table><script>parent.document.title = "taken over"; top.stolen = true</script>')
    def __repr__(self):
        return f'table of rank {self.rank}'
"""
FIGURES = """%%distribute --nodes 3 --name figures
import time
import matplotlib.pyplot as plt
rank = dist.get_rank()
print(f'\\x1b[1;32mrank {rank}\\x1b[0m draws')
plt.figure(figsize=(5, 2.4))
plt.plot(torch.linspace(0, 9, 200).add(2 * rank).sin(), label=f'rank {rank}')
plt.legend()
plt.show()
display(Table(rank))
from IPython.display import Markdown, Math, SVG
svg = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20" onload="top.stolen = 1"><rect/></svg>'
display(SVG(svg), Markdown(f'**bold** of rank {rank}'), Math('x^2'))
print('and', 'goes on')
time.sleep(600)
"""
VALUE = """%%distribute --nodes 2
import matplotlib.pyplot as plt
figure, axes = plt.subplots(figsize=(3, 2))
axes.plot([1, 2, 3])
figure
"""


@pytest.mark.full("tests/service/notebook/test_displays has it without a page")
def test_a_figure_of_a_rank_is_in_that_ranks_tab_once(page, site, shots):
    site.put_notebook("figures.ipynb", "import torch\nimport torch.distributed as dist\n" + TABLE, FIGURES)
    open_notebook(page, site.url, USER, "figures.ipynb")
    page.keyboard.press("Control+b")
    wait_ran(run_cell(page, 0))
    here = run_cell(page, 1)
    panel = here.locator(".mc-panel")
    tab = panel.get_by_role("tab", name="rank 1")
    expect(tab).to_be_visible(timeout=2 * JOB_MS)  # matplotlib may make its list of fonts first
    tab.click()
    output = panel.get_by_role("tabpanel")
    expect(output).to_contain_text("and goes on")
    expect(output).to_contain_text("rank 1 draws")
    # The figure, and SVG as an image: its scripts do not run.
    pictures = output.locator("img")
    expect(pictures).to_have_count(2)
    until(lambda: pictures.first.evaluate("image => image.complete && image.naturalWidth > 200"))
    until(lambda: pictures.last.evaluate("image => image.complete && image.naturalWidth") == 40)
    expect(output.locator("svg")).to_have_count(0)
    # As JupyterLab draws it elsewhere.
    expect(output.locator(".mc-lab strong")).to_have_text("bold")
    expect(output.locator(".mc-lab mjx-container")).to_have_count(1)
    coloured = output.locator("span", has_text=re.compile("^rank 1$"))
    assert coloured.evaluate("span => getComputedStyle(span).color") == "rgb(0, 162, 80)"
    frame = output.frame_locator("iframe")
    expect(frame.locator("td").first).to_have_text("1")
    assert "taken over" not in page.title() and not page.evaluate("() => window.stolen")
    page.set_viewport_size({"width": 1280, "height": 1080})
    here.evaluate("cell => cell.scrollIntoView({block: 'start'})")
    page.screenshot(path=shots / "figure.png")
    number = re.search(r"job (\d+)", panel.inner_text())[1]
    panel.get_by_role("button", name="Stop").click()
    wait_ran(here)
    kept = here.locator(".mc-picture details", has_text="rank 2 draws")
    expect(kept.locator("img")).to_have_count(2)
    expect(kept).to_contain_text("**bold** of rank 2")
    expect(kept.locator("td").first).to_have_text("2")
    page.goto(f"{site.url}{JOBS_PATH}jobs/{number}")
    page.get_by_role("tab", name="rank 2").click()
    log = page.locator("#log")
    expect(log).to_contain_text("rank 2 draws\n")
    expect(log).to_contain_text("table of rank 2")
    expect(log.get_by_role("img")).to_have_count(2)
    until(lambda: log.get_by_role("img").last.evaluate("image => image.complete && image.naturalWidth") == 40)
    expect(log).to_contain_text("**bold** of rank 2")
    expect(log).to_contain_text("x^2")
    expect(log.locator("table, iframe, script")).to_have_count(0)
    assert "mc-display" not in log.inner_text() and "[1;32m" not in log.inner_text()


@pytest.mark.full("tests/service/notebook/test_displays has it without a page")
def test_a_figure_as_value_is_there_once(page, site):
    site.put_notebook("value.ipynb", VALUE)
    open_notebook(page, site.url, USER, "value.ipynb")
    here = run_cell(page, 0)
    wait_ran(here)
    expect(output_of(here).locator(".jp-RenderedImage img")).to_have_count(1)
    # Rank 1's figure, which differs, in rank 1's part.
    expect(here.locator(".mc-picture img")).to_have_count(1)
    expect(cell(page, 0).locator(".mc-picture details", has_text="rank 1").locator("img")).to_have_count(1)
