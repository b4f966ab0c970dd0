"""A real hub, and Debian's chromium on its pages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from ..hub.clusters import RunningCluster
from ..patience import until
from .chromium import MISSING, browser, program
from .lab import JOB_MS, log_in, stop_open_jobs

USER = "admin"
# Wait long for expected elements, since the machine may be busy; the default is five seconds.
expect.set_options(timeout=JOB_MS)


def write_notebook(path: Path, *cells: str) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in cells])
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
    }
    nbformat.write(notebook, path)


@dataclass(frozen=True)
class Site:
    """A running cluster and its first user."""

    cluster: RunningCluster
    password: str

    @property
    def url(self) -> str:
        return self.cluster.url

    @property
    def home(self) -> Path:
        return self.cluster.data / "homes" / USER

    def put_notebook(self, name: str, *cells: str) -> None:
        """Write a notebook into the user's home."""
        write_notebook(self.home / name, *cells)

    def read_notebook(self, name: str) -> nbformat.NotebookNode:
        """Read a notebook once it is complete: JupyterLab overwrites the file in place."""

        def whole() -> nbformat.NotebookNode | None:
            with suppress(ValueError):
                return nbformat.read(self.home / name, as_version=4)
            return None

        return until(whole)


@pytest.fixture(scope="session")
def site(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINICLUSTER_TREE", str(tree))
        cluster = RunningCluster(tmp_path_factory.mktemp("browser") / "data")
    try:
        yield Site(cluster, cluster.password)
        assert cluster.end() == 0
        assert not cluster.processes(), "something outlived its cluster"
    finally:
        cluster.kill()


@pytest.fixture(scope="session")
def chromium(needs: Callable[[object, str], None]) -> Iterator[Browser]:
    needs(program(), MISSING)
    with browser() as running:
        yield running


@pytest.fixture(scope="session")
def session(chromium: Browser, site: Site) -> Iterator[BrowserContext]:
    """A browser profile that is logged in."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    log_in(page, site.url, USER, site.password)
    page.close()
    yield context
    context.close()


@pytest.fixture
def page(session: BrowserContext, site: Site) -> Iterator[Page]:
    """A page in that profile; afterwards, all pages are closed and open jobs are stopped."""
    page = session.new_page()
    page.set_default_timeout(JOB_MS)
    yield page
    for other in session.pages:
        other.close()
    last = session.new_page()
    stop_open_jobs(last, site.url)
    last.close()


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for screenshots: $MINICLUSTER_SHOTS (docs/images for the README's), else a temporary one."""
    folder = Path(os.environ.get("MINICLUSTER_SHOTS") or tmp_path_factory.mktemp("shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
