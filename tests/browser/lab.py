"""A user's steps in JupyterLab and on the service's pages."""

from __future__ import annotations

import re
from pathlib import PurePath

from playwright.sync_api import Locator, Page, expect

from ..patience import until

START_MS = 60_000
JOB_MS = 60_000
STOP_MS = 60_000
JOBS_PATH = "/services/minicluster/"
_RAN = re.compile(r"^\[\d+\]:$")
_KERNEL_KNOWN = re.compile(r"\| (Idle|Busy)")
_STOP_ALL = """async () => {
  const { ask } = await import(`${document.getElementById("minicluster").dataset.url}static/service.js`);
  // First the models: their replicas are jobs, and a new one would take the place of each that is stopped.
  const { models } = await ask("api/models");
  const served = models.filter((model) => !["stopping", "stopped"].includes(model.state));
  await Promise.all(served.map((model) => ask(`api/models/${model.id}`, { method: "DELETE" })));
  const { jobs } = await ask("api/jobs", { query: { limit: 100 } });
  const open = jobs.filter((job) => !["succeeded", "failed", "stopped"].includes(job.state));
  await Promise.all(open.map((job) => ask(`api/jobs/${job.id}/stop`, { method: "POST" })));
  return open.length;
}"""


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
    show_notebook(page, f"{url}/user/{user}", name)


def show_notebook(page: Page, server: str, name: str) -> None:
    """The same, given the address of a Jupyter server."""
    # Use a new workspace, or JupyterLab would reopen notebooks of earlier tests.
    page.goto(f"{server}/lab/workspaces/{PurePath(name).stem}/tree/{name}")
    expect(page.locator(".jp-Notebook")).to_be_visible(timeout=START_MS)
    wait_ready(page)


def wait_ready(page: Page) -> None:
    """Wait until the kernel has started: the notebook's own indicator shows "idle" even before."""
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=START_MS)


def cell(page: Page, index: int) -> Locator:
    return page.locator(".jp-CodeCell").nth(index)


def run_cell(page: Page, index: int) -> Locator:
    """Run one code cell by Ctrl-Enter and return it, without waiting for its end."""
    here = cell(page, index)
    here.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    return here


def wait_ran(here: Locator, timeout_ms: int = JOB_MS) -> None:
    """Wait for the end of a cell's first run, by its execution number.

    The kernel's indicators are unreliable: they show "idle" during a cell with a widget, whose messages are
    handled in another thread.
    """
    expect(prompt(here)).to_have_text(_RAN, timeout=timeout_ms)


def prompt(here: Locator) -> Locator:
    return here.locator(".jp-InputArea-prompt")


def output_of(here: Locator) -> Locator:
    return here.locator(".jp-OutputArea")


def choose(page: Page, menu: str, item: str) -> None:
    """Choose an item of the menu bar by its label; its accessible name also has the shortcut."""
    page.get_by_role("menuitem", name=menu, exact=True).click()
    label = re.compile(f"^{re.escape(item)}$")
    page.locator(".lm-Menu-itemLabel").filter(has_text=label).click(timeout=START_MS)


def run_all(page: Page) -> None:
    choose(page, "Run", "Run All Cells")


def interrupt_kernel(page: Page) -> None:
    choose(page, "Kernel", "Interrupt Kernel")


def restart_kernel(page: Page) -> None:
    # Until a page that was loaded again knows its kernel, JupyterLab restarts nothing and asks nothing.
    expect(page.locator("#jp-main-statusbar")).to_contain_text(_KERNEL_KNOWN, timeout=START_MS)
    choose(page, "Kernel", "Restart Kernel…")
    with page.expect_response(lambda answer: "/restart" in answer.url, timeout=START_MS):
        page.locator(".jp-Dialog .jp-mod-accept").click()
    wait_ready(page)


def open_jobs(page: Page, url: str) -> None:
    page.goto(f"{url}{JOBS_PATH}jobs")
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()


def ask_why(page: Page, *told: str) -> None:
    """Press "Why is it stuck?" on a job's page until these texts appear: a busy rank may answer late."""
    button = page.get_by_role("button", name="Why is it stuck?")

    def asked() -> bool:
        button.click()
        expect(button).to_be_enabled()
        shown = page.locator("#why-sentence").inner_text() + page.locator("#why-ranks").inner_text()
        return all(one in shown for one in told)

    until(asked)


def stop_open_jobs(page: Page, url: str) -> None:
    """Stop a test's open jobs, so that the next test's cells do not wait for nodes."""
    open_jobs(page, url)
    while page.evaluate(_STOP_ALL):
        page.wait_for_timeout(200)
