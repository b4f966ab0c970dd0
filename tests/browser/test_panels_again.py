"""Panels that reopen by themselves: after a reload, a kernel restart, in another browser, unsaved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect

from .. import messages
from ..patience import until
from .conftest import USER, Site
from .lab import (
    JOB_MS,
    START_MS,
    STOP_MS,
    cell,
    choose,
    log_in,
    open_notebook,
    output_of,
    prompt,
    restart_kernel,
    run_cell,
    wait_ran,
    wait_ready,
)

BEFORE = "kept = 42"
STEPS = """%%distribute --nodes 2 --name {name}
import time
import minicluster as mc
for step in mc.progress(range({steps}), label='steps'):
    print('rank', mc.rank(), 'step', step, flush=True)
    mc.log(step=step, loss=2 / (2 + step))
    time.sleep(0.1)
made = 'by the ranks'
"""
AFTER = "print('kept is', kept, globals().get('made'))"
LONG = 3000
PANEL = ".mc-panel"
JOB_TYPE = "application/vnd.minicluster.job+json"
SEEN = "<b>Last seen 22 Nov 16:05:11: Running on 3 ranks</b>"
LAST_SEEN = f'<div class="mc-picture" style="border:9px solid var(--x,#ddd)">{SEEN}</div>'


def started(page: Page, site: Site, name: str, steps: int = LONG) -> Locator:
    """Run a notebook's distributed cell, its second one, until its ranks print."""
    site.put_notebook(f"{name}.ipynb", BEFORE, STEPS.format(name=name, steps=steps), AFTER)
    open_notebook(page, site.url, USER, f"{name}.ipynb")
    wait_ran(run_cell(page, 0))
    save(page)
    panel = run_cell(page, 1).locator(PANEL)
    expect(panel).to_contain_text("rank 0 step 3", timeout=JOB_MS)
    return panel


def is_live(panel: Locator) -> None:
    """Wait until the panel shows a later step than now."""
    expect(panel).to_contain_text(messages.RUNNING.format(ranks=2), timeout=JOB_MS)
    now = int(until(lambda: re.findall(r"rank 0 step (\d+)", panel.inner_text()))[-1])
    expect(panel).to_contain_text(f"rank 0 step {now + 10}", timeout=JOB_MS)


def look_again(page: Page, site: Site, name: str) -> Locator:
    """Open a notebook whose kernel may be busy; return the panel of its second cell."""
    page.goto(f"{site.url}/user/{USER}/lab/workspaces/{name}/tree/{name}.ipynb?reset")
    expect(page.locator(".jp-Notebook")).to_be_visible(timeout=START_MS)
    return cell(page, 1).locator(PANEL)


def save(page: Page) -> None:
    choose(page, "File", "Save Notebook")
    expect(page.locator(".jp-mod-dirty")).to_have_count(0)


def take_picture(page: Page, path: Path) -> None:
    page.set_viewport_size({"width": 1100, "height": 700})
    page.keyboard.press("Control+b")
    expect(page.locator(".jp-DirListing").first).not_to_be_visible()
    page.screenshot(path=path)


def stop(panel: Locator) -> None:
    panel.get_by_role("button", name="Stop").click()
    expect(panel).to_contain_text(messages.STOPPED.format(ranks=2), timeout=STOP_MS)


@contextmanager
def another_browser(chromium: Browser, site: Site) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    log_in(page, site.url, USER, site.password)
    yield page
    context.close()


def test_after_a_reload_the_panel_is_live_again_and_its_end_stays(
    page: Page, site: Site, shots: Path
) -> None:
    started(page, site, "reloaded", 300)
    save(page)
    panel = look_again(page, site, "reloaded")
    is_live(panel)
    # After the reload, JupyterLab itself no longer knows that this cell runs.
    expect(prompt(cell(page, 1))).to_have_text("[*]:")
    expect(panel).to_contain_text("The kernel still runs this cell: its results come into the notebook")
    take_picture(page, shots / "panel-reload.png")
    expect(page.locator(PANEL)).to_have_count(1)
    # The cell's original page is closed, so this page saves the final picture.
    picture = cell(page, 1).locator(".mc-picture")
    expect(picture).to_contain_text(messages.SUCCEEDED.format(ranks=2), timeout=JOB_MS)
    expect(picture).to_contain_text("rank 0 step 299")
    # JupyterLab does not trust this page's output, and would remove SVG elements.
    expect(picture.get_by_alt_text("Plot of loss")).to_be_visible()
    save(page)
    # The panel's own save may end before this one: JupyterLab then calls the notebook saved, too.
    until(lambda: [set(data) for data in kept_of(site)] == [{"text/html", "text/plain"}])
    expect(prompt(cell(page, 1))).to_have_text("[ ]:")
    assert "%distribute" not in kept_of(site)[0]["text/plain"]
    expect(output_of(run_cell(page, 2))).to_contain_text("kept is 42 by the ranks", timeout=JOB_MS)


def kept_of(site: Site) -> list[nbformat.NotebookNode]:
    """Return the data of the second cell's outputs, from the file on disk."""
    return [output.get("data", {}) for output in site.read_notebook("reloaded.ipynb").cells[1].outputs]


@pytest.mark.full("the gate has a reload here, and a restart in tests/hub/test_kernel_ends")
def test_a_kernel_restart_and_another_browser_change_nothing(
    page: Page, chromium: Browser, site: Site, shots: Path
) -> None:
    panel = started(page, site, "restarted")
    save(page)
    restart_kernel(page)
    is_live(panel)
    number = re.search(r"job (\d+)", panel.inner_text())[1]
    expect(panel).to_contain_text(
        f"No kernel waits for its results. To have them: %distribute attach {number}"
    )
    expect(prompt(cell(page, 1))).to_have_text("[ ]:")
    take_picture(page, shots / "panel-restart.png")
    with another_browser(chromium, site) as elsewhere:
        there = look_again(elsewhere, site, "restarted")
        is_live(there)
        choose(page, "Kernel", "Shut Down Kernel")
        stop(there)
        # Neither page overwrites the other's file.
        expect(panel).to_contain_text(messages.STOPPED.format(ranks=2), timeout=STOP_MS)


def refuse_outputs(route: Route) -> None:
    wants = route.request.method == "PUT" and JOB_TYPE in (route.request.post_data or "")
    route.abort() if wants else route.continue_()


@pytest.mark.full("in the gate a page is reloaded after it was saved")
def test_a_page_closed_before_it_was_saved_gets_its_panel_back_in_the_right_cell(
    page: Page, session: BrowserContext, site: Site, shots: Path
) -> None:
    # The user's disk is full, so the extension's save fails.
    page.route("**/api/contents/unsaved.ipynb*", refuse_outputs)
    started(page, site, "unsaved")
    page.close(run_before_unload=False)
    later = session.new_page()
    panel = look_again(later, site, "unsaved")
    is_live(panel)
    expect(later.locator(PANEL)).to_have_count(1)
    expect(later.locator(".jp-mod-dirty")).to_have_count(0)
    # The kernel still waits for the job.
    panel.get_by_role("button", name="Stop").click()
    take_picture(later, shots / "panel-stop.png")
    expect(cell(later, 1)).to_contain_text(messages.STOPPED.format(ranks=2), timeout=STOP_MS)
    expect(output_of(run_cell(later, 2))).to_contain_text("kept is 42", timeout=JOB_MS)


@pytest.mark.full("in the gate the notebook has a name before")
def test_a_new_notebook_is_saved_when_its_cell_starts(page: Page, site: Site) -> None:
    """Otherwise a reload would lose the cell, but not its job."""
    page.goto(f"{site.url}/user/{USER}/lab/workspaces/untitled?reset")
    page.locator(".jp-LauncherCard", has_text="Python 3").first.click(timeout=START_MS)
    expect(page.locator(".jp-Notebook")).to_be_visible(timeout=START_MS)
    wait_ready(page)
    cell(page, 0).locator(".cm-content").fill(STEPS.format(name="typed", steps=LONG))
    expect(run_cell(page, 0).locator(PANEL)).to_contain_text("rank 0 step 3", timeout=JOB_MS)
    expect(page.locator(".jp-mod-dirty")).to_have_count(0)
    page.reload()
    expect(page.locator(".jp-Notebook")).to_be_visible(timeout=START_MS)
    panel = cell(page, 0).locator(PANEL)
    is_live(panel)
    stop(panel)


class HeldSave:
    """Delays the answer to a page's first save of a file, until it is released."""

    def __init__(self, page: Page, name: str) -> None:
        self.page = page
        self.written = 0
        self.held: list[Route] = []
        page.route(f"**/api/contents/{name}*", self._pass)

    def _pass(self, route: Route) -> None:
        if route.request.method == "PUT":
            self.written += 1
        elif self.written == 1 and not self.held:
            self.held.append(route)
            return
        route.continue_()

    def wait(self, seen: Callable[[], object]) -> None:
        """Wait while the page continues to send requests."""
        until(lambda: self.page.wait_for_timeout(20) or seen())


@pytest.mark.full("in the gate the panel alone saves")
def test_a_save_by_hand_during_the_panels_own_finds_no_strange_file(page: Page, site: Site) -> None:
    """JupyterLab once asked whether to overwrite or to reload the file, which would lose typed text."""
    site.put_notebook("saved-twice.ipynb", STEPS.format(name="saved-twice", steps=LONG))
    open_notebook(page, site.url, USER, "saved-twice.ipynb")
    saves = HeldSave(page, "saved-twice.ipynb")
    here = run_cell(page, 0)
    saves.wait(lambda: saves.held)
    page.keyboard.press("Control+s")
    page.wait_for_timeout(500)  # A dialog would appear within this time.
    expect(page.locator(".jp-Dialog")).to_have_count(0)
    saves.held[0].continue_()
    saves.wait(lambda: saves.written == 2)
    here.get_by_role("button", name="Stop").click()
    expect(here).to_contain_text(messages.STOPPED.format(ranks=2), timeout=STOP_MS)


def forgotten(site: Site, name: str, cells: int) -> None:
    """Write a notebook that was saved while jobs ran that the service no longer knows."""
    site.put_notebook(name, *(["1"] * cells))
    notebook = site.read_notebook(name)
    for number, one in enumerate(notebook.cells):
        panel = {"job": 90_000 + number, "service": "/services/minicluster/", "made": 1.5}
        data = {JOB_TYPE: panel, "text/html": LAST_SEEN, "text/plain": "Last seen"}
        one.outputs = [nbformat.v4.new_output("display_data", data)]
    nbformat.write(notebook, site.home / name)


@pytest.mark.full("in the gate the job is still known")
def test_panels_of_forgotten_jobs_say_when_they_were_last_seen(page: Page, site: Site) -> None:
    """Eight panels: with one connection each, no connection would be left for JupyterLab."""
    forgotten(site, "forgotten.ipynb", 8)
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    open_notebook(page, site.url, USER, "forgotten.ipynb")
    for number in range(8):
        here = cell(page, number)
        # JupyterLab adds cells when it has nothing else to do.
        here.scroll_into_view_if_needed(timeout=3 * START_MS)
        expect(here).to_contain_text("Last seen 22 Nov 16:05:11", timeout=JOB_MS)
        expect(here).to_contain_text(f"job {90_000 + number}")
        expect(here.get_by_role("button", name="Stop")).to_have_count(0)
    # JupyterLab removes styles with variables from untrusted output; styles by class remain.
    kept = cell(page, 0).locator(".mc-picture")
    assert kept.evaluate("node => getComputedStyle(node).borderTopWidth") == "1px"
    assert len([url for url in sockets if url.endswith("/minicluster/stream")]) == 1
    wait_ran(run_cell(page, 0))


def test_jupyterlab_takes_the_extension_as_it_is_written(page: Page, site: Site) -> None:
    """Our module container uses names that JupyterLab does not document."""
    lines: list[str] = []
    page.on("console", lambda message: lines.append(message.text))
    page.goto(f"{site.url}/user/{USER}/lab?reset")
    expect(page.locator("#jp-main-dock-panel")).to_be_visible(timeout=START_MS)
    assert page.evaluate("Object.keys(window._JUPYTERLAB.minicluster)") == ["init", "get"]
    expect(page.locator('link[href*="minicluster/panel.css"]')).to_have_count(1, timeout=START_MS)
    assert not [line for line in lines if "minicluster" in line.lower()]
