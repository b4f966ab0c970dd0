"""The front with a real HAProxy on a port, small servers as replicas, and a server behind it."""

import asyncio
import logging
import shutil
import signal
import time

import httpx
import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from minicluster.wire.serving.replicas import ReplicaOptions
from minicluster_hub.listeners import UsersPort
from minicluster_hub.serving.front.front import ModelFront

from ...patience import eventually
from .replicas import Replica, route

PREFIX = "/services/minicluster/"
ANSWERS = f"{PREFIX}answers/ada/digits/"
TOKEN = {"Authorization": "Bearer ada-token"}
RIGHTS = "minicluster_hub.serving.front.rights"


class Service(RequestHandler):
    """What is behind HAProxy: says so, and that it saw the request."""

    async def prepare(self):
        self.settings["seen"].append((self.request.path, self.request.remote_ip))
        self.set_status(418)
        self.finish("the job service")


class Site:
    """A front on a port, and a client of it."""

    def __init__(self):
        self.seen = []
        application = Application([("/.*", Service)], seen=self.seen, log_function=lambda handler: None)
        self.port = UsersPort(lambda: HTTPServer(application, xheaders=True))
        sockets = bind_sockets(0, "127.0.0.1")
        self.address = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        self.port.listen(sockets)
        self.front = ModelFront(PREFIX, "haproxy", time.time, logging.getLogger("minicluster-test"))
        self.front.door = self.port
        self.http = httpx.AsyncClient(base_url=self.address, timeout=20)

    async def ask(self, path="predict", headers=TOKEN, method="POST", content=b"[[1, 2]]", **more):
        content = content if method == "POST" else None
        return await self.http.request(method, ANSWERS + path, headers=headers, content=content, **more)

    async def allow(self, of):
        """Let TOKEN ask, and wait until HAProxy knows."""
        self.front.allow(TOKEN["Authorization"], of)
        await eventually(lambda: self.front._haproxy._entries["allowed"])

    async def close(self):
        await self.http.aclose()
        await self.port.close()
        await self.front.close()


@pytest.fixture
async def site():
    if shutil.which("haproxy") is None:
        pytest.skip("HAProxy is not installed")
    made = Site()
    yield made
    await made.close()


@pytest.fixture
async def replicas():
    made = []

    def make(name):
        made.append(Replica(name, len(made) + 1))
        return made[-1]

    yield make
    for one in made:
        await one.die()


async def test_before_a_model_is_served_haproxy_is_not_there(site):
    assert (await site.ask()).status_code == 418
    assert site.front._haproxy is None


async def test_a_known_token_goes_to_a_replica_and_all_else_to_the_service(site, replicas):
    one = replicas("one")
    await site.front.lead(route(one))
    assert site.front.name == "HAProxy"
    assert (await site.ask()).status_code == 418, "the token is not known yet"
    await site.allow(route(one))
    answer = await site.ask()
    assert (answer.status_code, answer.json()) == (200, {"replica": "one"})
    for headers in ({}, {"Authorization": "Bearer bob-token"}, {"Cookie": "service-minicluster=x"}):
        assert (await site.ask(headers=headers)).status_code == 418
    for path in ("openapi.json", "docs", "shutdown", "../jobs"):
        assert (await site.ask(path)).status_code == 418, path
    assert (await site.http.get(f"{PREFIX}api/jobs", headers=TOKEN)).status_code == 418
    assert site.seen[-1] == (f"{PREFIX}api/jobs", "127.0.0.1")
    assert (await site.ask("v2/health/ready", method="GET")).status_code == 200
    assert [path for _, path, _, _ in one.requests] == ["predict", "v2/health/ready"]


async def test_the_owners_code_sees_no_token_and_sets_nothing_at_the_hub(site, replicas):
    one = replicas("one")
    one.content_type = "text/html"
    await site.front.lead(route(one))
    await site.allow(route(one))
    sent = {**TOKEN, "Cookie": "jupyterhub=x", "X-Forwarded-For": "10.0.0.9", "X-XSRFToken": "y"}
    sent |= {"Minicluster-Replica": "guessed"}
    answer = await site.ask(headers=sent)
    _, _, seen, body = one.requests[-1]
    assert body == b"[[1, 2]]"
    assert {name.lower() for name in seen} <= {"host", "content-length", "accept", "minicluster-replica"}
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Set-Cookie" not in answer.headers and "Server" not in answer.headers


async def test_an_open_model_needs_no_token(site, replicas):
    one = replicas("one")
    await site.front.lead(route(one, is_open=True))
    assert (await site.ask(headers={})).status_code == 200
    await site.front.lead(route(one))
    assert (await site.ask(headers={})).status_code == 418


async def test_a_change_of_version_drops_no_request(site, replicas):
    old, new = replicas("old"), replicas("new")
    old.takes_s = new.takes_s = 0.02
    await site.front.lead(route(old))
    await site.allow(route(old))
    statuses, names, over = [], [], asyncio.Event()

    async def client():
        async with httpx.AsyncClient(base_url=site.address, timeout=20) as http:
            while not over.is_set():
                answer = await http.post(f"{ANSWERS}predict", headers=TOKEN, content=b"[[1, 2]]")
                statuses.append(answer.status_code)
                names.append(answer.json().get("replica"))

    clients = [asyncio.create_task(client()) for _ in range(16)]
    await eventually(lambda: names.count("old") > 50)
    await site.front.lead(route(new, version=2))
    old.drains = True
    after = len(names)
    await eventually(lambda: names.count("new") > 50)
    over.set()
    await asyncio.gather(*clients)
    assert set(statuses) == {200}
    assert after < len(names) and names[-1] == "new"


async def test_a_replica_that_dies_loses_no_request(site, replicas):
    one, other = replicas("one"), replicas("other")
    one.takes_s = other.takes_s = 0.02
    await site.front.lead(route(one, other))
    await site.allow(route(one))
    statuses, over = [], asyncio.Event()

    async def client():
        async with httpx.AsyncClient(base_url=site.address, timeout=20) as http:
            while not over.is_set():
                answer = await http.post(f"{ANSWERS}predict", headers=TOKEN, content=b"[[1, 2]]")
                statuses.append(answer.status_code)

    clients = [asyncio.create_task(client()) for _ in range(16)]
    await eventually(lambda: one.requests and other.requests and len(statuses) > 50)
    await one.die()
    count = len(statuses)
    await eventually(lambda: len(statuses) > count + 100)
    over.set()
    await asyncio.gather(*clients)
    assert set(statuses) == {200}


async def test_limits_are_kept(site, replicas):
    one = replicas("one")
    limited = route(one, options=ReplicaOptions(timeout_s=0.3, request_bytes=1024))
    await site.front.lead(limited)
    await site.allow(limited)
    assert (await site.ask(content=b"x" * 2000)).status_code == 413
    one.takes_s = 5.0
    slow = await site.ask()
    assert slow.status_code == 504
    assert "longer" in slow.json()["error"]


async def test_requests_are_counted(site, replicas):
    one = replicas("one")
    await site.front.lead(route(one))
    await site.allow(route(one))
    for _ in range(20):
        await site.ask()
    figures = await eventually(
        lambda: (found := site.front.figures.of("ada/digits")).requests == 20 and found
    )
    assert figures.errors == 0 and figures.p50_s is not None and figures.p50_s < 5


async def test_haproxy_is_started_again_when_it_dies(site, replicas):
    one = replicas("one")
    await site.front.lead(route(one))
    await site.allow(route(one))
    process = site.front._haproxy._process
    process.kill()
    await eventually(lambda: site.front._haproxy is not None and site.front._haproxy._process is not process)
    await eventually(lambda: site.front._haproxy._entries["slots"])
    assert (await site.ask()).status_code == 418, "tokens are asked about again"
    await site.allow(route(one))
    assert (await site.ask()).status_code == 200


async def test_a_model_that_is_dropped_is_the_services_again(site, replicas):
    one = replicas("one")
    await site.front.lead(route(one))
    await site.allow(route(one))
    await site.front.drop(1)
    assert (await site.ask()).status_code == 418
    again = replicas("again")
    await site.front.lead(route(again, model_id=2))
    assert (await site.ask()).status_code == 418, "the token's right was for the former model"
    await site.allow(route(again, model_id=2))
    assert (await site.ask()).json() == {"replica": "again"}


async def test_many_models_have_their_own_replicas(site, replicas):
    made = [replicas(f"r{number}") for number in range(3)]
    for number, one in enumerate(made):
        await site.front.lead(route(one, model_id=number + 1, name=f"m{number}", is_open=True))
    for number in range(3):
        answer = await site.http.post(f"{PREFIX}answers/ada/m{number}/predict", content=b"[]")
        assert answer.json() == {"replica": f"r{number}"}


async def test_the_right_of_a_token_in_use_is_renewed_by_some_of_its_requests(site, replicas, monkeypatch):
    monkeypatch.setattr(f"{RIGHTS}.FRESH_S", 0.05)
    monkeypatch.setattr(f"{RIGHTS}.ALLOWED_S", 600.0)
    one = replicas("one")
    await site.front.lead(route(one))
    await site.allow(route(one))
    known = site.front._haproxy._entries["allowed"]
    await eventually(lambda: [*known.values()] == ["old"])
    statuses = [(await site.ask()).status_code for _ in range(100)]
    assert set(statuses) == {200, 418}, "none, or all of them, went to the job service"
    assert statuses.count(200) > statuses.count(418)


async def test_the_right_of_a_token_ends(site, replicas, monkeypatch):
    monkeypatch.setattr(f"{RIGHTS}.FRESH_S", 0.05)
    monkeypatch.setattr(f"{RIGHTS}.ALLOWED_S", 0.1)
    one = replicas("one")
    await site.front.lead(route(one))
    site.front.allow(TOKEN["Authorization"], route(one))
    await eventually(lambda: not site.front._rights._values)
    await eventually(lambda: not site.front._haproxy._entries["allowed"])
    assert (await site.ask()).status_code == 418


async def test_replicas_take_the_places_of_others_where_all_are_taken(site, replicas, monkeypatch):
    monkeypatch.setattr("minicluster_hub.serving.front.haproxy.SERVERS", 1)
    old, new = replicas("old"), replicas("new")
    await site.front.lead(route(old, is_open=True))
    assert (await site.ask()).json() == {"replica": "old"}
    await site.front.lead(route(new, is_open=True))
    assert (await site.ask()).json() == {"replica": "new"}


async def test_a_haproxy_that_does_not_answer_is_replaced(site, replicas, monkeypatch):
    monkeypatch.setattr("minicluster_hub.serving.front.haproxy._ANSWERS_WITHIN_S", 1.0)
    one, other = replicas("one"), replicas("other")
    await site.front.lead(route(one, is_open=True))
    stuck = site.front._haproxy
    stuck._process.send_signal(signal.SIGSTOP)
    await site.front.lead(route(other, is_open=True))
    await eventually(lambda: site.front._haproxy not in (None, stuck))
    await eventually(lambda: site.front._haproxy._entries["slots"])
    assert (await site.ask()).json() == {"replica": "other"}


async def test_requests_to_models_that_are_gone_are_not_counted(site, replicas):
    one = replicas("one")
    await site.front.lead(route(one, is_open=True))
    await site.ask()
    await eventually(lambda: site.front.figures.of("ada/digits").requests == 1)
    await site.front.drop(1)
    assert site.front.figures.of("ada/digits").requests == 0
    site.front.count("ada/digits", 200, 0.1)
    assert site.front.figures.of("ada/digits").requests == 0
