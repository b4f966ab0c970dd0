"""A hub with domains for users and the service, and a base path: panel, Stop and links work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from .. import messages
from ..hub.clusters import RunningCluster, free_port
from .conftest import USER, write_notebook
from .lab import JOB_MS, STOP_MS, cell, log_in, output_of, run_cell, show_notebook, wait_ran

# Browsers resolve all names below `localhost` to this machine.
CONFIG = """from minicluster_hub.configure import configure
c = get_config()
configure(c)
c.JupyterHub.bind_url = "http://127.0.0.1:{port}/lab/one/"
c.JupyterHub.subdomain_host = "http://localhost:{port}"
"""
FILE = "%%distribute --nodes 2\nimport minicluster as mc\n(mc.output() / 'a.txt').write_text('hello')"
LONG = "%%distribute --nodes 2\nimport time\nprint('at', 'work', flush=True)\ntime.sleep(600)"

pytestmark = pytest.mark.full("a hub of its own")


@pytest.fixture
def domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningCluster]:
    port = free_port()
    (tmp_path / "jupyterhub_config.py").write_text(CONFIG.format(port=port))
    monkeypatch.setenv("MINICLUSTER_TREE", str(tmp_path))
    cluster = RunningCluster(tmp_path / "data", port=port)
    yield cluster
    cluster.end()
    cluster.kill()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


def opened(link: Locator) -> Page:
    with link.page.context.expect_page() as new:
        link.click()
    return new.value


def test_the_panel_its_stop_and_its_links(page: Page, domains: RunningCluster) -> None:
    home = domains.data / "homes" / USER
    home.mkdir(parents=True)
    write_notebook(home / "domains.ipynb", FILE, "%distribute files 1", LONG)
    hub = f"localhost:{domains.port}/lab/one"
    log_in(page, f"http://{hub}/", USER, domains.password)
    show_notebook(page, f"http://{USER}.{hub}/user/{USER}", "domains.ipynb")
    wait_ran(run_cell(page, 0), 2 * JOB_MS)
    panel = run_cell(page, 2).locator(".mc-panel")
    expect(panel).to_contain_text("at work", timeout=JOB_MS)
    log = opened(panel.get_by_role("link", name="Full log"))
    expect(log.get_by_role("heading", name="Run 2")).to_be_visible()
    expect(log.locator("#log")).to_contain_text("at work")
    panel.get_by_role("button", name="Stop").click()
    expect(cell(page, 2)).to_contain_text(messages.STOPPED.format(ranks=2), timeout=STOP_MS)
    # Opening the log has logged in at the service, as its first link does.
    link = output_of(run_cell(page, 1)).get_by_role("link", name="download")
    with page.expect_download() as download:
        link.click(timeout=JOB_MS)
    assert download.value.path().read_text() == "hello"
