"""The spawner's debts to a real ledger that is away: what is freed late is never a newer server."""

import asyncio
import logging
from contextlib import suppress

import httpx
import pytest

from minicluster.wire import PlaceServer
from minicluster_hub.scheduling.servers import ServerLimits
from minicluster_spawner.ledger import Ledger

from ...patience import eventually
from .client import PREFIX

GPU = PlaceServer(gpus=1)


class Door:
    """The way to the service: while it is shut, each connection breaks off."""

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


async def test_a_debt_that_is_being_paid_takes_nothing_from_the_server_that_started_meanwhile(lab):
    async with Door(httpx.URL(lab.url).port) as door:
        url = f"http://127.0.0.1:{door.port}{PREFIX}"
        ledger = Ledger(url, "spawner-token", logging.getLogger(__name__), patience_s=3.0, debt_pause_s=0.0)
        await ledger.place("ada", "", GPU)
        door.open = False
        await ledger.free("ada", "")
        # The debt's own attempts are under way; the last one may sit in a pause when the ledger is back.
        seen = door.refused
        await eventually(lambda: door.refused > seen + 3)
        starting = asyncio.create_task(ledger.place("ada", "", GPU))
        await asyncio.sleep(0.05)
        door.open = True
        place = await starting
        await asyncio.sleep(2.5)
        assert await ledger.places() == (place,)
        assert len(lab.context.store.world().leases) == 1
        await ledger.close()


async def test_a_debt_is_paid_when_the_ledger_is_back(lab):
    async with Door(httpx.URL(lab.url).port) as door:
        url = f"http://127.0.0.1:{door.port}{PREFIX}"
        ledger = Ledger(url, "spawner-token", logging.getLogger(__name__), patience_s=0.2, debt_pause_s=0.1)
        await ledger.place("ada", "", GPU)
        await ledger.place("bob", "", GPU)
        door.open = False
        await ledger.free("ada", "")
        await ledger.free("bob", "")
        door.open = True
        await eventually(lambda: not lab.context.store.world().leases)
        await ledger.close()
