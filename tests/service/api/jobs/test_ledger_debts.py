"""Slots that the spawner frees later, as the ledger is away: never those of a newer server."""

import asyncio
import logging
from contextlib import suppress
from types import SimpleNamespace

import httpx
import pytest

from minicluster.wire import PlaceServer
from minicluster_hub.scheduling.servers import ServerLimits
from minicluster_hub.servers.placement import ServerPlaces
from minicluster_hub.web.errors import ApiError
from minicluster_spawner.ledger import LedgerClient

from ....patience import eventually
from ..client import PREFIX

GPU = PlaceServer(gpus=1)
LOG = logging.getLogger(__name__)


class Door:
    """A proxy in front of the service: while it is shut, it breaks each connection."""

    def __init__(self, port):
        self._service = port
        self.open = True
        self.refused = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _pass(self, reader, writer):
        if not self.open:
            self.refused += 1
            writer.close()
            return
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._service)
        await asyncio.gather(self._copy(reader, ours), self._copy(theirs, writer))

    async def _copy(self, reader, writer):
        with suppress(ConnectionError):
            while self.open and (data := await reader.read(65536)):
                writer.write(data)
        writer.close()


@pytest.fixture
async def lab(start_api):
    async with start_api(servers=ServerLimits(max_gpus=2, max_gpu_s=3600.0)) as started:
        started.engine.kinds = ("gpu", "gpu")
        yield started


async def test_a_place_that_is_freed_later_takes_nothing_from_the_server_that_started_meanwhile(lab):
    async with Door(httpx.URL(lab.url).port) as door:
        url = f"http://127.0.0.1:{door.port}{PREFIX}"
        ledger = LedgerClient(
            url, "spawner-token", logging.getLogger(__name__), retry_for_s=3.0, retry_pause_s=0.0
        )
        await ledger.place("ada", "", GPU)
        door.open = False
        await ledger.free("ada", "")
        # The spawner keeps trying to free the slots; it may be in a pause when the ledger is back.
        seen = door.refused
        await eventually(lambda: door.refused > seen + 3)
        starting = asyncio.create_task(ledger.place("ada", "", GPU))
        await asyncio.sleep(0.05)
        door.open = True
        place = await starting
        await asyncio.sleep(2.5)
        assert await ledger.places() == (place,)
        assert len(lab.context.store.open_state().leases) == 1
        await ledger.close()


async def test_what_the_service_frees_late_is_not_the_place_of_the_next_server(lab, monkeypatch):
    """The spawner has given up the first DELETE, but the service then carries it out."""
    hang, hangs = asyncio.Event(), asyncio.Event()
    end = ServerPlaces.end

    async def late(self, *args):
        if not hangs.is_set():
            hangs.set()
            await hang.wait()
        await end(self, *args)

    monkeypatch.setattr(ServerPlaces, "end", late)
    ledger = LedgerClient(
        lab.url,
        "spawner-token",
        logging.getLogger(__name__),
        retry_pause_s=3600.0,
    )
    await ledger.place("ada", "", GPU)
    giving_back = asyncio.create_task(ledger.free("ada", ""))
    await hangs.wait()
    giving_back.cancel()
    await asyncio.gather(giving_back, return_exceptions=True)
    await ledger.free("ada", "")
    place = await ledger.place("ada", "", GPU)
    hang.set()
    await asyncio.sleep(0.5)
    assert await ledger.places() == (place,)
    assert len(lab.context.store.open_state().leases) == 1
    await ledger.close()


async def test_gpus_that_are_released_late_are_not_those_of_the_next_server(lab):
    """An engine holds them under the server's name, so the next server waits for the release."""
    release, done = asyncio.Event(), []

    async def slow(_owner, _name):
        await release.wait()
        done.append("released")

    async def hold(_record):
        done.append("held")
        return ("GPU-1",)

    lab.engine.gpu_holds = SimpleNamespace(hold=hold, release=slow)
    url, log = lab.url, logging.getLogger(__name__)
    first, second = LedgerClient(url, "spawner-token", log), LedgerClient(url, "spawner-token", log)
    await first.place("ada", "", GPU)
    freeing = asyncio.create_task(first.free("ada", ""))
    await eventually(lambda: any(turn.locked() for turn in lab.context.server_places.locks.values()))
    placing = asyncio.create_task(second.place("ada", "", GPU))
    await asyncio.sleep(0.2)
    release.set()
    await freeing
    assert (await placing).gpus == ("GPU-1",)
    assert done == ["held", "released", "held"]
    await asyncio.gather(first.close(), second.close())


async def test_a_place_is_freed_when_the_ledger_is_back(lab):
    async with Door(httpx.URL(lab.url).port) as door:
        url = f"http://127.0.0.1:{door.port}{PREFIX}"
        ledger = LedgerClient(
            url, "spawner-token", logging.getLogger(__name__), retry_for_s=0.2, retry_pause_s=0.1
        )
        await ledger.place("ada", "", GPU)
        await ledger.place("bob", "", GPU)
        door.open = False
        await ledger.free("ada", "")
        await ledger.free("bob", "")
        door.open = True
        await eventually(lambda: not lab.context.store.open_state().leases)
        await ledger.close()


async def test_a_place_that_the_ledger_keeps_does_not_keep_others_from_being_freed(lab, monkeypatch):
    end = ServerPlaces.end

    async def ends(self, owner, *args):
        if owner == "ada":
            raise ApiError(409, "not_now", "this one stays")
        await end(self, owner, *args)

    monkeypatch.setattr(ServerPlaces, "end", ends)
    # They are in a set, so with several refused ones the order would be random.
    names = [str(number) for number in range(4)]
    async with Door(httpx.URL(lab.url).port) as door:
        url = f"http://127.0.0.1:{door.port}{PREFIX}"
        ledger = LedgerClient(
            url, "spawner-token", logging.getLogger(__name__), retry_for_s=0.2, retry_pause_s=0.1
        )
        for name in names:
            await ledger.place("ada", name, PlaceServer())
        await ledger.place("bob", "", PlaceServer())
        door.open = False
        for name in names:
            await ledger.free("ada", name)
        await ledger.free("bob", "")
        door.open = True
        await eventually(lambda: lab.context.store.server("bob", "") is None)
        await ledger.close()
