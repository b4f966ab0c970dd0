"""What a person does in JupyterLab, as small steps."""

from __future__ import annotations

from pathlib import PurePath

from playwright.sync_api import Locator, Page, expect

START_MS = 60_000
JOB_MS = 120_000
_SHOWN = ".jp-NotebookPanel:not(.lm-mod-hidden)"


def log_in(page: Page, url: str, name: str, password: str) -> None:
    """Log in by the form; JupyterHub then starts the server and opens JupyterLab."""
    page.goto(url)
    page.fill("#username_input", name)
    page.fill("#password_input", password)
    page.click("#login_submit")
    page.wait_for_url("**/user/**", timeout=START_MS)
    expect(page.locator("#jp-main-dock-panel")).to_be_visible(timeout=START_MS)


def open_notebook(page: Page, url: str, user: str, name: str) -> None:
    """Open a notebook of the user's home by its URL, and wait until its kernel is idle."""
    # A workspace of its own: JupyterLab would open the notebooks of former tests again.
    page.goto(f"{url}/user/{user}/lab/workspaces/{PurePath(name).stem}/tree/{name}")
    expect(page.locator(".jp-Notebook")).to_be_visible(timeout=START_MS)
    # The notebook's own indicator says "idle" before there is a kernel; the status bar does not.
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=START_MS)


def wait_idle(page: Page, timeout_ms: int = JOB_MS) -> None:
    idle = page.locator(f'{_SHOWN} .jp-Notebook-ExecutionIndicator[data-status="idle"]')
    expect(idle).to_be_visible(timeout=timeout_ms)


def cell(page: Page, index: int) -> Locator:
    return page.locator(f"{_SHOWN} .jp-CodeCell").nth(index)


def run_cell(page: Page, index: int) -> Locator:
    """Run one code cell by Ctrl-Enter and return it, without waiting for its end."""
    here = cell(page, index)
    here.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    return here


def run_all(page: Page) -> None:
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def restart_kernel(page: Page) -> None:
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name="Restart Kernel…", exact=True).click()
    page.locator(".jp-Dialog .jp-mod-accept").click()
    wait_idle(page, START_MS)


def interrupt_kernel(page: Page) -> None:
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name="Interrupt Kernel", exact=True).click()


def output_of(here: Locator) -> Locator:
    return here.locator(".jp-OutputArea-output").last
