"""A whole job service on a free port: real tornado and a real store; see hub.py for what is not real."""

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from jupyterhub.services.auth import HubOAuth
from tornado.netutil import bind_sockets

from minicluster_hub.blobs import BlobFiles
from minicluster_hub.handlers.context import ApiLimits, Context
from minicluster_hub.handlers.metrics import Metrics
from minicluster_hub.handlers.server import make_server
from minicluster_hub.job_watch import JobWatch
from minicluster_hub.logs import JobLogs
from minicluster_hub.reconciler import Reconciler
from minicluster_hub.scheduling.placement.pack import Pack
from minicluster_hub.scheduling.policies.fifo import Fifo
from minicluster_hub.scheduling.servers import ServerLimits
from minicluster_hub.stall_watch import StallWatch
from minicluster_hub.store import Store

from .client import PREFIX, Api, Events
from .hub import HubApi, MemoryEngine


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
    async def start(servers=None, **limits):
        hub, engine = HubApi(), MemoryEngine()
        sockets = bind_sockets(0, "127.0.0.1")
        port = sockets[0].getsockname()[1]
        context = _context(
            tmp_path, hub, engine, f"http://127.0.0.1:{port}{PREFIX}", limits, servers or ServerLimits()
        )
        server = make_server(context, b"a test's secret of 32 bytes ....")
        works = [
            asyncio.create_task(context.reconciler.run()),
            asyncio.create_task(
                JobWatch(context.store, context.metrics, context.log).run(context.board.changes)
            ),
            asyncio.create_task(StallWatch(context.store, context.board, context.clock, context.log).run()),
        ]
        await context.board.looked.wait()
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


def _context(folder, hub, engine, url, limits, servers):
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
    metrics.collect_from(store.world, reconciler.board.nodes)
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
        server_limits=servers,
    )


@pytest.fixture
async def api(start_api):
    async with start_api() as started:
        yield started
