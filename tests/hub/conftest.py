"""One real hub with some users for this folder's tests; tests log in as they need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor

from ..patience import WITHIN_S
from .clusters import RunningCluster


@dataclass(frozen=True)
class Lab:
    """A running cluster and the passwords of its users."""

    cluster: RunningCluster
    passwords: dict[str, str]

    @property
    def service_url(self) -> str:
        return self.cluster.url + SERVICE_PATH


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run this folder's tests in one event loop, to which the users' connections belong."""
    for item in items:
        if "tests/hub/" in item.path.as_posix() and item.get_closest_marker("asyncio"):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session", autouse=True)
def source_tree(tree: Path) -> Iterator[None]:
    """Make clusters read jupyterhub_config.py from the source tree, wherever pytest was started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINICLUSTER_TREE", str(tree))
        yield


@pytest.fixture(scope="session")
def lab(source_tree: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    cluster = RunningCluster(tmp_path_factory.mktemp("lab") / "data")
    try:
        added = {name: cluster.add_user(name) for name in ("ada", "grace", "hedy")}
        yield Lab(cluster, {"admin": cluster.password, **added})
        assert cluster.end() == 0
        assert not cluster.processes(), "something outlived its cluster"
    finally:
        cluster.kill()


async def logged_in(lab: Lab, name: str) -> AsyncIterator[Visitor]:
    async with Visitor(lab.cluster.url, name) as visitor:
        page = await visitor.log_in(lab.passwords[name])
        assert page.status_code == httpx.codes.OK
        await visitor.start_server()
        # Opening the page Jobs also logs in at the job service.
        await visitor.http.get(SERVICE_PATH)
        yield visitor


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ada(lab: Lab) -> AsyncIterator[Visitor]:
    """Ada's browser: logged in, with a running notebook server."""
    async for visitor in logged_in(lab, "ada"):
        yield visitor


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def grace(lab: Lab) -> AsyncIterator[Visitor]:
    async for visitor in logged_in(lab, "grace"):
        yield visitor


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def hedys_browser(lab: Lab) -> AsyncIterator[Visitor]:
    async for visitor in logged_in(lab, "hedy"):
        yield visitor


@pytest_asyncio.fixture(loop_scope="session")
async def hedy(hedys_browser: Visitor) -> Visitor:
    """Hedy's browser. Tests may stop her server, since no fixture holds its token."""
    await hedys_browser.start_server()
    return hedys_browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def admin(lab: Lab) -> AsyncIterator[Visitor]:
    async for visitor in logged_in(lab, "admin"):
        yield visitor


async def notebook_api(visitor: Visitor) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the job service with the URL and token of the user's kernels."""
    async with open_kernel(visitor, "quickstart.ipynb") as kernel:
        url = await kernel.evaluate("__import__('os').environ['MINICLUSTER_URL']")
        token = await kernel.evaluate("__import__('os').environ['JUPYTERHUB_API_TOKEN']")
    headers = {"Authorization": f"token {token.strip(chr(39))}"}
    async with httpx.AsyncClient(
        base_url=url.strip("'"), headers=headers, trust_env=False, timeout=WITHIN_S
    ) as client:
        yield client


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ada_api(ada: Visitor) -> AsyncIterator[httpx.AsyncClient]:
    async for client in notebook_api(ada):
        yield client


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def grace_api(grace: Visitor) -> AsyncIterator[httpx.AsyncClient]:
    async for client in notebook_api(grace):
        yield client
