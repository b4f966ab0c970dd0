"""Requests forwarded from a standby service to the leader, over real HTTP."""

import asyncio
import hashlib

import httpx
import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler, stream_request_body

from minicluster_hub.leader_proxy import LeaderRouter
from minicluster_hub.web.route import OnFollower

PREFIX = "/services/minicluster/"
SIZE = 40_000_000


class Echo(RequestHandler):
    """A leader's handler that returns the request."""

    def post(self):
        self.set_header("Told", self.request.headers.get("Authorization", ""))
        self.set_status(201)
        self.finish(self.request.body)

    def delete(self):
        self.set_status(204)
        self.finish()


@stream_request_body
class Digest(RequestHandler):
    def prepare(self):
        self.digest = hashlib.sha256()

    def data_received(self, chunk):
        self.digest.update(chunk)

    def put(self):
        self.finish(self.digest.hexdigest())


class Piecewise(RequestHandler):
    """Sends a part, then waits for the test."""

    async def get(self):
        self.write("first")
        await self.flush()
        await self.settings["go_on"].wait()
        self.finish("last")


class Silent(RequestHandler):
    async def post(self):
        self.settings["came"].set()
        await asyncio.Event().wait()


class Report(Echo):
    """A handler of agents' requests."""

    on_follower = OnFollower.REFER


class AlwaysLeading:
    """A fake leadership, since no other service runs here."""

    def __init__(self, leader_url):
        self.leads = False
        self.leader_url = leader_url
        self.moved = asyncio.Event()


class Pair:
    def __init__(self):
        self.go_on, self.came = asyncio.Event(), asyncio.Event()
        routes = [("echo", Echo), ("digest", Digest), ("api/events", Piecewise), ("silent", Silent)]
        self.leading = self._serve(
            Application([(PREFIX + path, kind) for path, kind in routes], go_on=self.go_on, came=self.came)
        )
        self.leader_election = AlwaysLeading(f"http://127.0.0.1:{self.leading[1]}{PREFIX}")
        inside = Application([(PREFIX + "api/jobs", Echo), (PREFIX + "api/tasks/report", Report)])
        self.standing_by = self._serve(LeaderRouter(inside, self.leader_election))
        url = f"http://127.0.0.1:{self.standing_by[1]}{PREFIX}"
        self.http = httpx.AsyncClient(base_url=url, timeout=20)

    def _serve(self, inside):
        server = HTTPServer(inside, max_body_size=2**40)
        sockets = bind_sockets(0, "127.0.0.1")
        server.add_sockets(sockets)
        return server, sockets[0].getsockname()[1]

    async def close(self):
        await self.http.aclose()
        for server, _ in (self.leading, self.standing_by):
            server.stop()
            await server.close_all_connections()


@pytest.fixture
async def pair():
    made = Pair()
    yield made
    await made.close()


async def test_body_headers_and_status_go_both_ways(pair):
    for _ in range(2):  # the second request uses the same connection
        answer = await pair.http.post("echo", content=b"\x00all of it", headers={"Authorization": "token x"})
        assert (answer.status_code, answer.content, answer.headers["Told"]) == (
            201,
            b"\x00all of it",
            "token x",
        )
    assert (await pair.http.delete("echo")).status_code == 204


@pytest.mark.parametrize("told", [True, False], ids=["with its length", "in chunks"])
async def test_a_large_body_passes_piece_by_piece(pair, told):
    async def pieces():
        for _ in range(SIZE // 1_000_000):
            yield b"x" * 1_000_000

    headers = {"Content-Length": str(SIZE)} if told else {}
    answer = await pair.http.put("digest", content=pieces(), headers=headers)
    assert answer.text == hashlib.sha256(b"x" * SIZE).hexdigest()


async def test_an_answer_comes_as_it_is_said(pair):
    async with pair.http.stream("GET", "api/events") as answer:
        parts = answer.aiter_text()
        assert await anext(parts) == "first"
        pair.go_on.set()
        assert await anext(parts) == "last"


async def test_nobody_waits_for_a_leader_that_was_followed(pair):
    asking = asyncio.create_task(pair.http.post("silent", content=b""))
    await pair.came.wait()
    pair.leader_election.moved.set()
    answer = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_leader")


async def test_a_leader_that_is_gone_is_told_after_the_whole_body(pair):
    pair.leading[0].stop()
    await pair.leading[0].close_all_connections()
    answer = await pair.http.put("digest", content=b"x" * SIZE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_leader")


async def test_an_answer_that_breaks_off_does_not_look_complete(pair):
    with pytest.raises(httpx.RemoteProtocolError):
        async with pair.http.stream("GET", "api/events") as answer:
            parts = answer.aiter_text()
            assert await anext(parts) == "first"
            await pair.leading[0].close_all_connections()
            async for _ in parts:
                pass


async def test_what_was_passed_on_is_not_passed_on_again(pair):
    pair.leader_election.leader_url = str(pair.http.base_url)
    answer = await pair.http.post("echo", content=b"x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_leader")


async def test_agents_are_told_to_go_to_the_leader(pair):
    answer = await pair.http.post("api/tasks/report", content=b"{}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_leading")
    assert pair.leader_election.leader_url in answer.json()["error"]["message"]


async def test_who_leads_answers_all_by_itself(pair):
    pair.leader_election.leads = True
    assert (await pair.http.post("api/jobs", content=b"own")).content == b"own"
