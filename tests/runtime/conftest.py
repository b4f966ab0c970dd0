"""Agents for tests: three that stay warm over all tests, and separate ones for tests that break them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from .cluster import Cluster
from .live import Lighthouse, Live
from .task_service import TaskService


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run this folder's tests in one event loop, which serves the warm agents."""
    for item in items:
        if "tests/runtime/" in item.path.as_posix() and item.get_closest_marker("asyncio"):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def agents(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    service = TaskService()
    await service.open()
    cluster = Cluster(service, tmp_path_factory.mktemp("warm"))
    await cluster.start(3)
    yield cluster
    await cluster.close()
    await service.close()


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(agents: Cluster) -> AsyncIterator[Cluster]:
    """Three warm agents; afterwards, check that they are idle."""
    yield agents
    for task in agents.tasks:
        await agents.service.order(task, None)
    await agents.check_idle()


Start = Callable[[int, TaskService], Awaitable[Cluster]]


@pytest_asyncio.fixture(loop_scope="session")
async def start(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Start]:
    """A function that starts separate agents with the test's own kind of service."""
    clusters: list[Cluster] = []

    async def start_agents(count: int, service: TaskService) -> Cluster:
        await service.open()
        cluster = Cluster(service, tmp_path_factory.mktemp("own"))
        clusters.append(cluster)
        await cluster.start(count)
        return cluster

    yield start_agents
    for cluster in clusters:
        await cluster.close()
        await cluster.service.close()


@pytest_asyncio.fixture(loop_scope="session")
async def live(start: Start) -> AsyncIterator[Live]:
    lighthouse = Lighthouse()
    yield Live(await start(3, TaskService()), lighthouse)
    lighthouse.kill()
