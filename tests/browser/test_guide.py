"""Runs the cells of docs/guide.md as written, and takes the guide's screenshots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from .. import messages
from ..documents import blocks
from .conftest import USER, Site
from .lab import START_MS, cell, open_notebook, output_of, run_cell, wait_ran

NEWCOMER = "ada"


def test_a_newcomer_logs_in_and_finds_the_examples(chromium: Browser, site: Site, shots: Path) -> None:
    password = site.cluster.add_user(NEWCOMER)
    context = chromium.new_context(viewport={"width": 1280, "height": 640})
    page = context.new_page()
    page.goto(site.url)
    page.fill("#username_input", NEWCOMER)
    page.fill("#password_input", password)
    page.screenshot(path=shots / "login.png", clip={"x": 0, "y": 0, "width": 1280, "height": 480})
    page.click("#login_submit")
    examples = page.locator(".jp-DirListing-item")
    expect(examples.filter(has_text="quickstart.ipynb")).to_be_visible(timeout=START_MS)
    expect(page.locator(".jp-LauncherCard").first).to_be_visible(timeout=START_MS)
    page.screenshot(path=shots / "lab.png")
    context.close()


@pytest.mark.full("tests/hub/test_documents has them without a page")
def test_the_guides_cells_run_as_they_stand_there(page: Page, site: Site, tree: Path, shots: Path) -> None:
    guide = blocks((tree / "docs" / "guide.md").read_text())
    cells = [block.source for block in guide if block.kind == "python"]
    site.put_notebook("guide.ipynb", *cells)
    open_notebook(page, site.url, USER, "guide.ipynb")
    page.keyboard.press("Control+b")
    for index in range(len(cells)):
        wait_ran(run_cell(page, index))
        # An empty list of texts: a failure then shows what was printed.
        warned = output_of(cell(page, index)).locator(".jp-RenderedText[data-mime-type*=stderr]")
        expect(warned).to_have_text([])
    (training,) = [index for index, source in enumerate(cells) if "--data digits" in source]
    expect(cell(page, training).locator(".mc-picture")).to_contain_text(messages.SUCCEEDED.format(ranks=3))
    found = re.search(r"accuracy (\d\.\d+)", cell(page, training).locator(".mc-picture").inner_text())
    assert found
    assert float(found[1]) > 0.9
    page.set_viewport_size({"width": 1280, "height": 1140})
    cell(page, training - 1).evaluate("cell => cell.scrollIntoView({block: 'start'})")
    page.screenshot(path=shots / "data.png")
    (plain,) = [index for index, source in enumerate(cells) if "mc.comm()" in source]
    expect(cell(page, plain).locator(".mc-picture")).to_contain_text(messages.SUCCEEDED.format(ranks=3))
    cell(page, plain).evaluate("cell => cell.scrollIntoView({block: 'start'})")
    page.screenshot(path=shots / "plain-python.png", clip={"x": 0, "y": 0, "width": 1280, "height": 660})
