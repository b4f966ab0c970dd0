"""The guide's chapter on models that do not fit on one GPU, in a browser, with its picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ..documents import blocks
from .conftest import USER, Site
from .lab import cell, open_notebook, output_of, run_cell, wait_ran

NEEDED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

inputs = torch.rand(3000, 2)
truth = (inputs.sum(dim=1) > 1).long()
loader = DataLoader(TensorDataset(inputs, truth), batch_size=50, shuffle=True)
"""


@pytest.mark.full("tests/runtime has the strategies without a page")
def test_a_divided_model_is_explained_in_the_page(page: Page, site: Site, tree: Path, shots: Path) -> None:
    guide = (tree / "docs" / "guide.md").read_text()
    begin = guide.index(". Models that do not fit on one GPU\n")
    chapter = guide[begin : guide.index("\n## ", begin)]
    cells = [NEEDED, *(block.source for block in blocks(chapter) if block.kind == "python")]
    site.put_notebook("large.ipynb", *cells)
    open_notebook(page, site.url, USER, "large.ipynb")
    page.keyboard.press("Control+b")
    for index in range(len(cells)):
        wait_ran(run_cell(page, index))
    explained = output_of(cell(page, 2)).locator("table")
    expect(explained).to_contain_text("1/3 on each rank")
    expect(explained.locator("tbody tr").last).to_contain_text("this rank")
    accuracy = output_of(cell(page, 3)).inner_text()
    assert float(accuracy.partition("tensor(")[2].partition(")")[0]) > 0.9
    page.set_viewport_size({"width": 1280, "height": 900})
    cell(page, 2).evaluate("cell => cell.scrollIntoView({block: 'start'})")
    page.screenshot(path=shots / "explain.png")
