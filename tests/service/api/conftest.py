"""A whole job service on a free port: real tornado and a real store; hub.py has the fakes."""

import asyncio
import logging
import shutil
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from tornado.netutil import bind_sockets

from minicluster_hub.control.stall_watch import StallWatch
from minicluster_hub.datasets.manager import DataSetFiles
from minicluster_hub.http_server import make_server
from minicluster_hub.images.catalogue import Catalogue
from minicluster_hub.images.publishing import Publications
from minicluster_hub.images.registry import Registries
from minicluster_hub.jobs.gang_state import LifecycleLimits
from minicluster_hub.machines.exporter import MachineCollector
from minicluster_hub.machines.machines import Machines
from minicluster_hub.machines.run_readings import RunReadings
from minicluster_hub.metrics import JobWatch, Metrics
from minicluster_hub.notices.emails import Emails
from minicluster_hub.notices.sender import NoticeSender
from minicluster_hub.notices.webhooks import Webhooks
from minicluster_hub.policy.active_policy import BUILT_IN, PolicyManager
from minicluster_hub.policy.custom_policy import CustomPolicies
from minicluster_hub.policy.simulations import WhatIfWorker
from minicluster_hub.runs.recorder import Recorder
from minicluster_hub.scheduling.admission import AdmissionLimits
from minicluster_hub.scheduling.limits import Quotas
from minicluster_hub.scheduling.servers import ServerLimits
from minicluster_hub.serving.front.front import ModelFront
from minicluster_hub.serving.options import ServingLimits
from minicluster_hub.serving.submission import ReplicaSubmission
from minicluster_hub.sessions.manager import SessionLimits
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.storage.compile_caches import CompileCaches
from minicluster_hub.storage.disk_space import DiskSpace
from minicluster_hub.storage.logs import JobLogs
from minicluster_hub.storage.quotas import Storage
from minicluster_hub.storage.run_files import RunFiles
from minicluster_hub.store import Store
from minicluster_hub.usage.accounting import WEEK_S, UsageAccounting
from minicluster_hub.web.auth import ServiceAuth
from minicluster_hub.web.context import ApiLimits, Context
from minicluster_hub.wiring import make_server_places, make_serving, make_sessions, make_sweeps

from ...patience import WITHIN_S
from ..machines import control_loop
from .client import PREFIX, Api, Events
from .hub import HubApi, MemoryEngine

# Simulated agents report only when a test makes them, so silence must not count; other tests cover it.
_SILENCE_IS_NO_LOSS = LifecycleLimits(
    heartbeat_timeout_s=10 * WITHIN_S, suspect_timeout_s=10 * WITHIN_S, boot_timeout_s=10 * WITHIN_S
)


@pytest.fixture
def listen():
    @asynccontextmanager
    async def opened(client, path, **more):
        async with client.stream("GET", path, **more) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield Events(answer)

    return opened


@pytest.fixture
def start_api(tmp_path, sqlite_tables):
    """A function that starts a service with the test's limits; a second call continues with its data."""
    shutil.copy(sqlite_tables, tmp_path / "minicluster.sqlite")
    return partial(serving, tmp_path)


@asynccontextmanager
async def serving(
    folder, servers=None, images=None, quotas=None, post=None, engine=None, models=None, **limits
):
    """Run a service with its data in a folder, including its background tasks."""
    hub, engine, images = HubApi(), engine or MemoryEngine(), images or Images()
    engine.images, engine.tags = images.own, images.tags
    sockets = bind_sockets(0, "127.0.0.1")
    port = sockets[0].getsockname()[1]
    context = _context(
        folder,
        hub,
        engine,
        f"http://127.0.0.1:{port}{PREFIX}",
        limits,
        servers or ServerLimits(),
        images,
        quotas or {},
        post or no_post,
        models or ServingLimits(),
    )
    server = make_server(context, b"a test's secret of 32 bytes ....")
    works = [
        asyncio.create_task(context.reconciler.run()),
        asyncio.create_task(
            JobWatch(context.store, context.metrics, context.log).run(context.status_cache.changes)
        ),
        asyncio.create_task(
            StallWatch(context.store, context.status_cache, context.clock, context.log).run()
        ),
        asyncio.create_task(context.notice_sender.run(context.status_cache.changes)),
        asyncio.create_task(context.recorder.run()),
        asyncio.create_task(context.sweeps.run()),
        asyncio.create_task(context.sessions.run()),
        asyncio.create_task(context.serving.manager.run()),
    ]
    offering = asyncio.create_task(context.catalogue.run())
    await context.status_cache.observed.wait()
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
        await context.held_polls.release()
        await server.close_all_connections()
        await hub.server.close_all_connections()
        for work in (*works, offering):
            work.cancel()
        await asyncio.gather(*works, offering, return_exceptions=True)
        await context.publications.close()
        await context.catalogue.registries.close()
        context.what_if.close()
        context.notice_sender.close()
        context.sweeps.close()
        await context.serving.close()
        await context.reconciler.close()
        context.store.close()


@dataclass(frozen=True)
class Images:
    """The cluster's settings for images: references, digests of tags, and registries."""

    own: tuple[str, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)
    registries: Registries = Registries({})  # noqa: RUF009 - frozen
    publishing: str = "ask"
    limit_bytes: int = 1 << 30


@pytest.fixture
def offer():
    return Images


def no_post(store, log):
    """Send nothing, as in a cluster without configured notices."""
    return NoticeSender(store, Webhooks(()), Emails(), time.time, log)


def _context(folder, hub, engine, url, limits, servers, images, quotas, post, models):
    store = Store.open(f"sqlite:///{folder}/minicluster.sqlite")
    hub_auth = ServiceAuth(
        api_url=hub.url,
        api_token="the-services-own",
        base_url=PREFIX,
        oauth_client_id="service-minicluster",
        hub_prefix="/hub/",
        cache_max_age=45,
    )
    accounting = UsageAccounting(store, WEEK_S, {}, Quotas.read(quotas))
    log = logging.getLogger("minicluster-test")
    own = CustomPolicies.in_processes(folder / "policies")
    reconciler = control_loop(
        store,
        engine,
        service_urls=(url,),
        accounting=accounting,
        limits=_SILENCE_IS_NO_LOSS,
        policy_manager=PolicyManager(store, BUILT_IN, time.time, log, own),
    )
    catalogue = Catalogue(store, engine, images.registries, time.time, log, images.publishing)
    storage = Storage(store.storage, lambda owner: 1 << 50, DiskSpace(folder))
    machines = Machines(folder / "readings" / "machines", engine.own_nodes, time.time, log)
    blobs = BlobFiles(folder / "blobs")
    metrics = Metrics()
    metrics.collect_from(store.open_state, reconciler.status_cache.nodes, reconciler.quarantine)
    metrics.registry.register(MachineCollector(machines.newest))
    logs = JobLogs(folder / "logs")
    recorder = Recorder(store, logs, RunFiles(folder / "runs"), log)
    front = ModelFront(PREFIX, "service", time.time, log)
    replicas = ReplicaSubmission(store, storage, accounting, AdmissionLimits(), time.time)
    return Context(
        store=store,
        reconciler=reconciler,
        status_cache=reconciler.status_cache,
        accounting=accounting,
        reservations=reconciler.reservations,
        policy_manager=reconciler.policy_manager,
        quarantine=reconciler.quarantine,
        data_set_tracker=reconciler.status_cache.data_set_tracker,
        server_places=make_server_places(store, reconciler, servers, time.time, log),
        logs=logs,
        blobs=blobs,
        hub_auth=hub_auth,
        metrics=metrics,
        limits=replace(ApiLimits(), **limits),
        clock=time.time,
        log=log,
        catalogue=catalogue,
        publications=Publications(catalogue, images.limit_bytes),
        data_sets=DataSetFiles(store, BlobFiles(folder / "pieces"), time.time, log, storage),
        storage=storage,
        compile_caches=CompileCaches(store, BlobFiles(folder / "compiled"), storage, time.time, log),
        what_if=WhatIfWorker(
            store,
            lambda: reconciler.policy_manager.active.choice,
            reconciler.status_cache.node_views,
            time.time,
            log,
        ),
        notice_sender=post(store, log),
        machines=machines,
        run_readings=RunReadings(RunFiles(folder / "runs").readings_path, time.time, log),
        recorder=recorder,
        sweeps=make_sweeps(store, reconciler, storage, blobs, AdmissionLimits(), time.time, log),
        sessions=make_sessions(store, reconciler, logs, SessionLimits(), time.time, log),
        serving=make_serving(
            store, reconciler, front, replicas, recorder, b"a secret", models, time.time, log
        ),
    )


@pytest.fixture
async def api(start_api):
    async with start_api() as started:
        yield started
