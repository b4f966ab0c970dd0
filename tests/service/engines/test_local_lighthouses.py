"""Lighthouses of the engine `local`, with real processes: a fixed address, found again, ended."""

import asyncio
import signal
import urllib.request

import pytest

from minicluster_hub.engines.local.engine import LocalEngine
from minicluster_hub.support.processes import DATA_LABEL, find, labelled, lives, signal_all

from ...patience import WITHIN_S

pytest.importorskip("torchft")


async def opened(folder):
    engine = LocalEngine(data_dir=str(folder), devices="cpu")
    engine.changed = asyncio.Event()
    engine.on_change = engine.changed.set
    await engine.open()
    return engine


def processes(folder):
    return find(labelled(**{DATA_LABEL: str(folder)}))


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    left = processes(tmp_path)
    signal_all(left)
    assert not left, "a test left lighthouses"


def page(address):
    with urllib.request.urlopen(f"http://{address}/status", timeout=1) as answer:
        return answer.read().decode()


async def answers(address):
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return await asyncio.to_thread(page, address)
            except OSError:
                await asyncio.sleep(0.05)


async def test_a_lighthouse_runs_without_torch(folder):
    engine = await opened(folder)
    await engine.lighthouses.start(7)
    await answers(engine.lighthouses.views()[7].address)
    (process,) = processes(folder)
    libraries = {part.path for part in process.memory_maps()}
    assert not [path for path in libraries if "libtorch" in path]
    await engine.lighthouses.start(7)
    assert len(processes(folder)) == 1
    await engine.lighthouses.end(7)
    assert not processes(folder)
    assert engine.lighthouses.views() == {}
    await engine.close()


async def test_one_that_is_killed_is_seen_and_starts_again_at_its_address(folder):
    engine = await opened(folder)
    await engine.lighthouses.start(7)
    address = engine.lighthouses.views()[7].address
    await answers(address)
    (process,) = processes(folder)
    process.send_signal(signal.SIGKILL)
    async with asyncio.timeout(WITHIN_S):
        await engine.changed.wait()
    assert not engine.lighthouses.views()[7].alive
    await engine.lighthouses.start(7)
    assert engine.lighthouses.views()[7].alive
    assert engine.lighthouses.views()[7].address == address
    await answers(address)
    await engine.lighthouses.end(7)
    await engine.close()


async def test_a_new_service_finds_those_that_run(folder):
    first = await opened(folder)
    await first.lighthouses.start(7)
    before = first.lighthouses.views()[7]
    await first.close()
    second = await opened(folder)
    assert second.lighthouses.views() == {7: before}
    (process,) = processes(folder)
    second.changed.clear()
    process.kill()
    async with asyncio.timeout(WITHIN_S):
        await second.changed.wait()
    assert not second.lighthouses.views()[7].alive
    await second.lighthouses.end(7)
    await second.lighthouses.end(8)
    await second.close()
    assert not lives(process)
