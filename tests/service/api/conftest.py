"""A whole job service on a free port: real tornado, a real store, a hub's API and machines in memory."""

import asyncio
import hashlib
import json
import logging
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import httpx
import pytest
from jupyterhub.services.auth import HubOAuth
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from minicluster.wire import (
    Job,
    RankReport,
    RankState,
    ReportAnswer,
    StreamChunk,
    TaskOrders,
    TaskReport,
)
from minicluster_hub.blobs import BlobFiles
from minicluster_hub.engines.base import Engine, TaskView
from minicluster_hub.handlers.context import ApiLimits, Context
from minicluster_hub.handlers.metrics import Metrics
from minicluster_hub.handlers.server import make_server
from minicluster_hub.job_watch import JobWatch
from minicluster_hub.logs import JobLogs
from minicluster_hub.models import NodeView
from minicluster_hub.reconciler import Reconciler
from minicluster_hub.scheduling.placement.pack import Pack
from minicluster_hub.scheduling.policies.fifo import Fifo
from minicluster_hub.store import Store

PREFIX = "/services/minicluster/"
READ, SUBMIT, ADMIN = (f"custom:minicluster:{what}" for what in ("read", "submit", "admin"))


def user_model(name, *scopes, kind="user"):
    return {"name": name, "kind": kind, "admin": False, "groups": [], "scopes": list(scopes)}


def people():
    """Tokens and who has them. A hub filters a user's custom scopes to that user."""
    own = {name: (f"{READ}!user={name}", f"{SUBMIT}!user={name}") for name in ("ada", "bob", "root")}
    models = {f"{name}-token": user_model(name, *scopes) for name, scopes in own.items()}
    models["root-token"] = user_model("root", READ, SUBMIT, ADMIN)
    models["reader-token"] = user_model("ada", f"{READ}!user=ada")
    models["submitter-token"] = user_model("ada", f"{SUBMIT}!user=ada")
    models["bobs-scopes-token"] = user_model("ada", *own["bob"])
    models["prometheus-token"] = user_model("prometheus", "read:metrics", kind="service")
    models["service-token"] = user_model("ada", READ, SUBMIT, kind="service")
    return models


class HubUser(RequestHandler):
    def get(self):
        hub = self.settings["hub"]
        hub.asked += 1
        if hub.down:
            return self.send_error(503)
        model = hub.models.get(self.request.headers["Authorization"].removeprefix("token "))
        if model is None:
            return self.send_error(403)
        return self.write(model)


class HubCodes(RequestHandler):
    """Gives the token that a browser's login code stands for."""

    def post(self):
        code = self.get_body_argument("code")
        self.write({"access_token": f"{code.removeprefix('code-of-')}-token"})


class HubApi:
    """The two calls that a service makes to a hub, over real HTTP.

    A stand-in, so that a test can say who has which scope, and let the hub fail; the real hub is
    tested in tests/hub.
    """

    def __init__(self):
        self.models = people()
        self.down = False
        self.asked = 0
        self.sockets = bind_sockets(0, "127.0.0.1")
        routes = [("/hub/api/user", HubUser), ("/hub/api/oauth2/token", HubCodes)]
        self.server = HTTPServer(Application(routes, hub=self, log_function=lambda handler: None))
        self.server.add_sockets(self.sockets)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.sockets[0].getsockname()[1]}/hub/api"


class MemoryEngine(Engine):
    """Machines without processes: the tests play the agents."""

    def __init__(self):
        super().__init__()
        self.views = {}
        self.launches = {}

    async def open(self):
        pass

    async def start(self, launch):
        self.launches[launch.task_id] = launch
        self.views[launch.task_id] = TaskView(launch.task_id, alive=True)

    async def end(self, task_id):
        self.views[task_id] = TaskView(task_id, alive=False, clean=True)
        self.on_change()

    def tasks(self):
        return self.views

    def forget(self, task_id):
        self.views.pop(task_id, None)

    def nodes(self):
        return tuple(NodeView(f"node-{i}", True, "127.0.0.1", ("cpu",)) for i in (1, 2, 3))

    async def close(self):
        pass


class Agent:
    """An agent as the service sees it: one task's token and what it says."""

    def __init__(self, api, launch):
        self.task_id = launch.task_id
        headers = {"Authorization": f"task {launch.token}", "Minicluster-Wire": "1"}
        self.http = api.client(**headers)

    async def report(self, **report):
        message = TaskReport(**{"ready": True, "store_port": 4000, **report})
        answer = await self.http.post("api/tasks/report", content=message.model_dump_json())
        assert answer.status_code == 200, answer.text
        return ReportAnswer.model_validate_json(answer.content)

    async def orders(self, have=""):
        answer = await self.http.get("api/tasks/orders", params={"have": have})
        assert answer.status_code == 200, answer.text
        return TaskOrders.model_validate_json(answer.content)

    async def run_order(self):
        """Say that the agent is ready and wait for something to run."""
        await self.report()
        orders = await self.orders()
        while orders.run is None:
            orders = await self.orders(orders.version)
        return orders.run

    async def start_ranks(self, run):
        await self.report(attempt=run.attempt, ranks=_ranks(run, RankState.STARTED))

    async def finish(self, run, **more):
        ranks = _ranks(run, RankState.EXITED, exit_code=0)
        await self.report(attempt=run.attempt, ranks=ranks, cleared=run.attempt, **more)

    async def say(self, run, stream, offset, data):
        chunk = StreamChunk.model_construct(stream=stream, offset=offset, data=data)
        return await self.report(attempt=run.attempt, chunks=(chunk,))


def _ranks(run, state, **more):
    numbers = range(run.first_rank, run.first_rank + run.local_world_size)
    return tuple(RankReport(rank=number, state=state, **more) for number in numbers)


class Api:
    """The service under test, and short ways to speak to it."""

    def __init__(self, context, hub, engine, port):
        self.context, self.hub, self.engine = context, hub, engine
        self.url = f"http://127.0.0.1:{port}{PREFIX}"
        self.clients = []

    def client(self, token=None, **headers):
        auth = {"Authorization": f"token {token}"} if token else {}
        made = httpx.AsyncClient(base_url=self.url, headers={**auth, **headers}, timeout=10)
        self.clients.append(made)
        return made

    async def ask(self, method, path, token="ada-token", **more):
        return await self.client(token).request(method, path, **more)

    async def submit(self, owner="ada", nodes=1, payload=b"a cell", key=None, **spec):
        """Submit a job as a notebook does; return it."""
        sha256 = hashlib.sha256(payload).hexdigest()
        token = f"{owner}-token"
        await self.ask("PUT", f"api/blobs/{sha256}", token, content=payload)
        spec = {"payload_sha256": sha256, "nodes": {"min": nodes, "max": nodes}, **spec}
        body = {"idempotency_key": key or uuid4().hex, "spec": spec}
        answer = await self.ask("POST", "api/jobs", token, json=body)
        assert answer.status_code in (200, 201), answer.text
        return Job.model_validate_json(answer.content)

    async def agents(self, job_id):
        """Wait until the job's gang was started; return its agents, the first of the gang first."""
        async with asyncio.timeout(5):
            while True:
                record = self.context.store.job(job_id)
                tasks = [task for task in self.context.store.world().tasks if task.gang_id == record.gang_id]
                if tasks and all(task.id in self.engine.launches for task in tasks):
                    return [Agent(self, self.engine.launches[task.id]) for task in tasks]
                await asyncio.sleep(0.002)

    async def running(self, owner="ada", nodes=1, **spec):
        """Return a running job, its agents and their run orders."""
        job = await self.submit(owner, nodes, **spec)
        agents = await self.agents(job.id)
        runs = await asyncio.gather(*(agent.run_order() for agent in agents))
        for agent, run in zip(agents, runs, strict=True):
            await agent.start_ranks(run)
        await self.until(job.id, "running")
        return job, agents, runs

    async def until(self, job_id, state):
        async with asyncio.timeout(5):
            while self.context.store.job(job_id).state != state:
                await asyncio.sleep(0.002)


class Events:
    """Server-sent events as a client reads them: (name, data, id)."""

    def __init__(self, answer):
        self.answer = answer
        self.lines = answer.aiter_lines()
        self.keep_alives = 0

    async def next(self, timeout_s=5):
        """Return the next event; raises StopAsyncIteration when the server closed the stream."""
        fields = {}
        async with asyncio.timeout(timeout_s):
            while True:
                line = await anext(self.lines)
                if not line and fields:
                    return fields["event"], json.loads(fields["data"]), fields.get("id", "")
                name, _, value = line.partition(": ")
                if line.startswith(":"):
                    self.keep_alives += 1
                elif line:
                    fields[name] = value

    async def until(self, name):
        """Return all events up to the first of this name."""
        found = [await self.next()]
        while found[-1][0] != name:
            found.append(await self.next())
        return found


@pytest.fixture
def listen():
    @asynccontextmanager
    async def opened(client, path, **more):
        async with client.stream("GET", path, **more) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield Events(answer)

    return opened


@pytest.fixture
async def start_api(tmp_path):
    """Start services with limits of the test's choice; a second one goes on with the first's data."""

    @asynccontextmanager
    async def start(**limits):
        hub, engine = HubApi(), MemoryEngine()
        sockets = bind_sockets(0, "127.0.0.1")
        port = sockets[0].getsockname()[1]
        context = _context(tmp_path, hub, engine, f"http://127.0.0.1:{port}{PREFIX}", limits)
        server = make_server(context, b"a test's secret of 32 bytes ....")
        works = [
            asyncio.create_task(context.reconciler.run()),
            asyncio.create_task(
                JobWatch(context.store, context.metrics, context.log).run(context.reconciler.changes)
            ),
        ]
        await context.reconciler.looked()
        server.add_sockets(sockets)
        api = Api(context, hub, engine, port)
        try:
            yield api
            assert not [work for work in works if work.done()], "a part of the service died"
        finally:
            for client in api.clients:
                await client.aclose()
            server.stop()
            hub.server.stop()
            await server.close_all_connections()
            await hub.server.close_all_connections()
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            await context.reconciler.close()
            context.store.close()

    return start


def _context(folder, hub, engine, url, limits):
    store = Store.open(f"sqlite:///{folder}/minicluster.sqlite")
    hub_auth = HubOAuth(
        api_url=hub.url,
        api_token="the-services-own",
        base_url=PREFIX,
        oauth_client_id="service-minicluster",
        hub_prefix="/hub/",
        cache_max_age=45,
    )
    reconciler = Reconciler(store, engine, policy=Fifo(), placement=Pack(), service_url=url)
    metrics = Metrics()
    metrics.collect_from(store.world, reconciler.nodes)
    return Context(
        store=store,
        reconciler=reconciler,
        logs=JobLogs(folder / "logs"),
        blobs=BlobFiles(folder / "blobs"),
        hub_auth=hub_auth,
        metrics=metrics,
        limits=replace(ApiLimits(), **limits),
        clock=time.time,
        log=logging.getLogger("minicluster-test"),
    )


@pytest.fixture
async def api(start_api):
    async with start_api() as started:
        yield started
