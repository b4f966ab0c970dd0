"""A push interrupted by the end of the job service or registry: it resumes or fails; no partial image."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nbformat import NotebookNode

from minicluster_hub.cluster.registry.config import DATA_DIR
from minicluster_hub.launch.kernel import KernelConnection

from ... import messages
from ...service.publishing.index import Index
from ..cluster import LabCluster
from ..faults.inject import container_of, kill, wait_replaced
from ..machines.cgroups import ControlGroup
from ..people import People, error, text
from ..remains import check_nothing_left
from .catalogue import listed, retire_published

LAYER_BYTES = 24 << 20
"""Size of the package: large, so that sending takes a moment; its random bytes do not compress."""


@pytest.fixture
def heavy(index: Index) -> None:
    for name in ("heavyfirst", "heavysecond"):
        noise = base64.b64encode(os.urandom(LAYER_BYTES)).decode()
        index.add(name, "1.0", {f"{name}.py": f"NOISE = {noise!r}\n"})


@pytest.fixture(autouse=True)
def as_before(offering: LabCluster) -> Iterator[None]:
    yield
    retire_published(offering)
    check_nothing_left(offering)


async def test_a_push_in_which_something_dies(offering: LabCluster, people: People, heavy: None) -> None:
    async with people.at_work("petra") as petra, petra.kernel() as kernel:
        text(await kernel.run("%pip install heavyfirst"))
        async with stopped_push(kernel, "first", offering) as (_, publishing):
            await asyncio.to_thread(wait_replaced, offering, "service", kill(offering, "service"))
        assert f"first {messages.IS_PUBLISHED} heavyfirst 1.0" in text(await publishing)

        text(await kernel.run("%pip install heavysecond"))
        killed = container_of(offering, "registry")
        async with stopped_push(kernel, "second", offering) as (registry, publishing):
            registry.kill()
        failure = error(await publishing)
        assert "second was not published: the registry at https://registry:5000 does not answer" in failure
        assert "second" not in await listed(petra)
        assert not list(repositories(offering).glob("published/petra/second/_manifests/tags/*"))
        await asyncio.to_thread(wait_replaced, offering, "registry", killed)
        again = text(await kernel.run("made = %distribute publish second\nmade"))
        assert f"second {messages.IS_PUBLISHED} heavyfirst 1.0, heavysecond 1.0" in again
        assert {"first", "second"} <= set(await listed(petra))


@asynccontextmanager
async def stopped_push(
    kernel: KernelConnection, name: str, cluster: LabCluster
) -> AsyncIterator[tuple[ControlGroup, asyncio.Task[list[NotebookNode]]]]:
    """Publish; during the block, the registry is frozen while it receives a layer."""
    publishing = asyncio.create_task(kernel.run(f"made = %distribute publish {name}\nmade"))
    registry = await asyncio.to_thread(freeze_in_an_upload, cluster)
    try:
        yield registry, publishing
    finally:
        registry.thaw()


def repositories(cluster: LabCluster) -> Path:
    """Return the folder of the cluster's registry, as seen from outside of the lab."""
    volume = cluster.first.disk.folder / "volumes/minicluster_registry/_data"
    assert volume.is_dir(), f"the volume for {DATA_DIR} is elsewhere"
    return volume / "docker/registry/v2/repositories/minicluster"


def freeze_in_an_upload(cluster: LabCluster, within_s: float = 120) -> ControlGroup:
    """Freeze the registry while it receives a layer; return its container."""
    folder, group = repositories(cluster), cluster.first.machine.group.name
    registry = ControlGroup(f"{group}/{container_of(cluster, 'registry')}")
    until = time.monotonic() + within_s
    try:
        registry.freeze()
        known = set(folder.glob("**/_uploads/*"))
        # The registry runs in short steps between checks, so a slow check does not let the upload finish.
        while not set(folder.glob("**/_uploads/*")) - known:
            assert time.monotonic() < until, "no upload has begun"
            registry.thaw()
            time.sleep(0.005)
            registry.freeze()
    except BaseException:
        registry.thaw()
        raise
    return registry
