"""A browser on a lab's cluster: log in, start a server, upload a notebook, stop the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect

from ..browser import chromium
from .cluster import LabCluster

# Several labs may share a machine with two cores.
WAIT_MS = 180_000


@pytest.fixture(scope="module")
def browser(needs: Callable[[object, str], None]) -> Iterator[Browser]:
    """A browser for one module: while it runs, tests with their own event loop cannot run."""
    needs(chromium.program(), chromium.MISSING)
    with chromium.browser() as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that accepts the self-signed certificate."""
    context = browser.new_context(ignore_https_errors=True, viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


def log_in(page: Page, url: str, name: str, password: str) -> None:
    """Log in by the form; wait for the spawn page."""
    page.goto(url)
    page.fill("#username_input", name)
    page.fill("#password_input", password)
    page.click("#login_submit")
    expect(page.locator("#minicluster-options")).to_be_visible()


def start_server(page: Page, cluster: LabCluster, name: str, *, node: str = "", url: str = "") -> None:
    """Create a user, log in (at `url` if given), and start a server (on `node` if given)."""
    log_in(page, url or cluster.url, name, cluster.add_user(name))
    if node:
        page.get_by_label("Node").select_option(node)
    page.get_by_role("button", name="Start").click()
    wait_lab(page, name)


def wait_lab(page: Page, name: str) -> None:
    """Wait until a started server shows JupyterLab."""
    page.wait_for_url(f"**/user/{name}/lab**", timeout=WAIT_MS)
    expect(page.locator("#jp-main-dock-panel")).to_be_visible(timeout=WAIT_MS)


def stop_server(page: Page, url: str) -> None:
    """Press Stop on the hub's home page, after its script has loaded: earlier clicks are lost."""
    page.goto(f"{url}/hub/home", wait_until="networkidle")
    page.get_by_role("button", name="Stop My Server").click()
    expect(page.get_by_role("button", name="Start My Server")).to_be_visible(timeout=WAIT_MS)


def put_notebook(cluster: LabCluster, name: str, *cells: str) -> None:
    """Write a notebook into the user's home, as an upload would."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
    (server,) = cluster.docker("ps", "--quiet", "--filter", "label=org.minicluster.role=server")
    write = f"import os, sys; open(os.path.expanduser('~/{name}'), 'w').write(sys.argv[1])"
    cluster.docker("exec", server, "python", "-c", write, nbformat.writes(notebook))
