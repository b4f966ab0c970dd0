"""The spawner's client of the ledger, with a service that is away, refuses, or answers wrongly."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from minicluster.wire import PlaceServer
from minicluster_spawner.ledger import LedgerClient, LedgerUnavailable, PlaceRefused
from minicluster_spawner.shared import ServerKey

LOG = logging.getLogger(__name__)
KEY = ServerKey("ada", "")
IMAGE = "127.0.0.1:5100/nb@sha256:aa"


class Service:
    """Sends the next of `answers`, and records requests."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[str] = []
        socket, self.port = bind_unused_port()
        outer = self

        class Handler(RequestHandler):
            def prepare(self) -> None:
                outer.asked.append(f"{self.request.method} {self.request.uri}")
                status, body = outer.answers.pop(0)
                self.set_status(status)
                self.finish(body or None)

        self.server = HTTPServer(Application([(r".*", Handler)]))
        self.server.add_socket(socket)


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    yield made
    made.server.stop()


PLACE = {"id": 7, "owner": "ada", "server": "", "node": "pc-1"}
PLACES = {"servers": [{**PLACE, "id": 6, "owner": "bob"}, PLACE]}
FREED = "DELETE /api/servers/ada/-?place=7"


def refused(code: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": "the home is on pc-1, which is down", "hint": "Wait."}}


async def test_a_place_is_asked_for_again_while_the_service_is_away(service: Service) -> None:
    ledger = LedgerClient(f"http://127.0.0.1:{service.port}/base/", "token", LOG)
    service.answers = [(503, {}), (502, {}), (200, PLACE)]
    place = await ledger.place("ada@lab/x", "", PlaceServer())
    assert place.node == "pc-1" and service.asked == ["PUT /base/api/servers/ada%40lab%2Fx/-"] * 3
    await ledger.close()


async def test_a_refusal_is_told_in_sentences(service: Service) -> None:
    ledger = LedgerClient(f"http://127.0.0.1:{service.port}/", "token", LOG)
    service.answers = [(409, refused("home_node_down"))]
    with pytest.raises(PlaceRefused, match=re.escape("The home is on pc-1, which is down. Wait.")) as caught:
        await ledger.place("ada", "", PlaceServer())
    assert caught.value.code == "home_node_down"
    await ledger.close()


@pytest.mark.parametrize("first", [(409, refused("place_differs")), (200, {**PLACE, "expired": True})])
async def test_what_an_earlier_server_left_in_the_ledger_is_given_back(
    service: Service, first: tuple[int, Any]
) -> None:
    ledger = LedgerClient(f"http://127.0.0.1:{service.port}/", "token", LOG)
    service.answers = [first, (200, PLACES), (204, None), (200, PLACE)]
    assert (await ledger.place("ada", "", PlaceServer())).node == "pc-1"
    put = "PUT /api/servers/ada/-"
    assert service.asked == [put, "GET /api/servers", FREED, put]
    await ledger.close()


async def test_a_place_that_cannot_be_freed_is_freed_later(service: Service) -> None:
    ledger = LedgerClient(f"http://127.0.0.1:{service.port}/", "token", LOG, retry_for_s=0.0)
    service.answers = [(503, {}), (200, PLACES), (204, None), (200, PLACE)]
    await ledger.free("ada", "")
    await ledger.place("ada", "", PlaceServer())
    assert service.asked[1:] == ["GET /api/servers", FREED, "PUT /api/servers/ada/-"]
    await ledger.close()


async def test_places_of_lost_servers_are_freed_later_but_none_that_was_asked_for_since(
    service: Service,
) -> None:
    """A hub and its job service start at the same time, so the service does not answer yet."""
    address = f"http://127.0.0.1:{service.port}/"
    ledger = LedgerClient(address, "token", LOG, retry_for_s=0.0, retry_pause_s=0.05)
    eve = {**PLACE, "id": 8, "owner": "eve"}
    service.answers = [(503, {}), (200, eve), (200, {"servers": [*PLACES["servers"], eve]}), (204, None)]
    await ledger.free_lost(lambda place: place.owner != "bob")
    await ledger.place("eve", "", PlaceServer())
    async with asyncio.timeout(30):
        while service.answers:
            await asyncio.sleep(0.01)
    assert service.asked[1:] == ["PUT /api/servers/eve/-", "GET /api/servers", FREED]
    await ledger.close()


async def test_a_service_that_stays_away_is_told() -> None:
    ledger = LedgerClient("http://127.0.0.1:1/", "token", LOG, retry_for_s=0.2)
    with pytest.raises(LedgerUnavailable, match="does not answer"):
        await ledger.place("ada", "", PlaceServer())
    await ledger.close()
