"""Builds the running service from its parts, and opens and closes them together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any, Self

from jupyterhub.httpclient import JupyterHubHTTPClient

from minicluster.wire import NoticeEvent, PolicyChoice
from minicluster.wire.images import Publishing
from minicluster_hub import service_lifecycle
from minicluster_hub.control.executor import Executor
from minicluster_hub.control.leader_election import LeaderElection
from minicluster_hub.control.liveness import Liveness
from minicluster_hub.control.planner import Planner
from minicluster_hub.control.progress_rates import ProgressRates
from minicluster_hub.control.quarantine import Quarantine
from minicluster_hub.control.reconciler import Reconciler
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.datasets.manager import DataSetFiles
from minicluster_hub.datasets.node_tracker import DataSetTracker
from minicluster_hub.engines.base import Engine
from minicluster_hub.former_agents import FormerAgents
from minicluster_hub.http_server import Servers, make_servers
from minicluster_hub.hub.dns_client import client_options
from minicluster_hub.images.catalogue import Catalogue
from minicluster_hub.images.publishing import Publications
from minicluster_hub.images.settings import RegistrySettings, pip_environment
from minicluster_hub.jobs.gang_state import LifecycleLimits
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.listeners import Sockets
from minicluster_hub.machines.exporter import MachineCollector
from minicluster_hub.machines.machines import Machines
from minicluster_hub.machines.run_readings import RunReadings
from minicluster_hub.metrics import Metrics
from minicluster_hub.policy.active_policy import PolicyManager
from minicluster_hub.policy.choices import ChoiceRefused
from minicluster_hub.policy.simulations import WhatIfWorker
from minicluster_hub.runs.recorder import Recorder
from minicluster_hub.scheduling.admission import AdmissionLimits
from minicluster_hub.scheduling.servers import ServerLimits
from minicluster_hub.servers.placement import ServerPlaces
from minicluster_hub.serving.automatic import AutoServing
from minicluster_hub.serving.front.figures import FiguresCollector
from minicluster_hub.serving.front.front import ModelFront
from minicluster_hub.serving.front.passing import Passing
from minicluster_hub.serving.manager import ModelManager, ReplicaControl
from minicluster_hub.serving.options import ServingLimits
from minicluster_hub.serving.parts import Serving
from minicluster_hub.serving.submission import ReplicaSubmission
from minicluster_hub.sessions.manager import SessionJobs, SessionLimits, SessionManager
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.storage.compile_caches import CompileCaches
from minicluster_hub.storage.logs import JobLogs
from minicluster_hub.storage.quotas import Storage
from minicluster_hub.storage.run_files import RunFiles
from minicluster_hub.store import Store
from minicluster_hub.support.clock import SteadyClock
from minicluster_hub.sweeps.checkpoints import Checkpoints
from minicluster_hub.sweeps.manager import JobControl, SweepManager
from minicluster_hub.sweeps.submission import Submission
from minicluster_hub.usage.accounting import UsageAccounting
from minicluster_hub.web.auth import ServiceAuth
from minicluster_hub.web.context import ApiLimits, Context

if TYPE_CHECKING:
    from minicluster_hub.app import MiniclusterHub


@dataclass(frozen=True)
class Wiring:
    """The parts of a running service. `open` raises the errors of parts that cannot be opened."""

    context: Context
    servers: Servers
    leader_election: LeaderElection
    former: FormerAgents

    @classmethod
    def open(cls, app: MiniclusterHub, task_url: str) -> Self:
        """Open everything but the ports."""
        # In a Swarm the hub's address changes at each restart.
        JupyterHubHTTPClient.instance(**client_options())
        hub_auth = ServiceAuth(parent=app, cache_max_age=app.auth_cache_s)
        if not hub_auth.api_token:
            raise ValueError(
                "JUPYTERHUB_API_TOKEN is not set: let the hub start the job service, or start it with the "
                "variables that --help lists"
            )
        secret = app.cookie_secret()
        registries = RegistrySettings(parent=app).registries()
        log: logging.Logger = app.log  # pyright: ignore[reportAssignmentType]
        store, clock, engine = Store.open(app.database_url()), SteadyClock(), app.make_engine()
        logs = JobLogs(app.service_dir / "logs", app.log_limit_bytes)
        publishing: Publishing = app.publishing  # pyright: ignore[reportAssignmentType]
        catalogue = Catalogue(store, engine, registries, clock, log, publishing)
        reconciler = make_reconciler(
            store,
            engine,
            policy_manager=_policy_manager(app, store, clock),
            accounting=app.accounting(store),
            service_urls=tuple(dict.fromkeys([task_url, *app.task_urls])),
            limits=app.limits,
            log=log,
            clock=clock,
            data_set_tracker=DataSetTracker(app.data_agent_token(), clock),
            progress_rates=ProgressRates(logs.last_records),
        )
        context = _context(app, hub_auth, store, reconciler, clock, catalogue, logs)
        leader_election = LeaderElection(store.compete(task_url), log)
        servers = make_servers(context, secret, leader_election, app.tls)
        context.serving.front.door = servers.users
        context.metrics.registry.register(FiguresCollector(context.serving.front.figures))
        former = FormerAgents(app.service_dir / "last_plain_task", app.former_bind_url, log)
        return cls(context, servers, leader_election, former)

    async def run(self, sockets: Sockets, stopped: asyncio.Event) -> None:
        """Serve until `stopped`. Raises NotLeading, and errors of the reconciler."""
        context = self.context
        stop = asyncio.ensure_future(stopped.wait())
        observed = asyncio.ensure_future(context.status_cache.observed.wait())
        standing_by = asyncio.ensure_future(self.leader_election.stands_by.wait())
        acting = asyncio.ensure_future(service_lifecycle.run(context, self.leader_election))
        former = asyncio.ensure_future(self.former.run(self.servers.former, context.status_cache))
        try:
            await _first(observed, standing_by, acting, stop)
            self.servers.listen(sockets.users, sockets.agents)
            context.log.info("the job service listens at %s%s", _address(sockets.users), context.prefix)
            await _first(acting, stop)
        finally:
            self.servers.stop()
            works = (observed, standing_by, acting, former, stop)
            for work in works:
                work.cancel()
            await asyncio.wait(works)

    async def close(self) -> None:
        """Close everything; the tasks keep running."""
        await self.context.held_polls.release()
        await self.servers.close()
        await self.context.serving.close()
        await self.context.publications.close()
        await self.context.catalogue.registries.close()
        self.context.what_if.close()
        self.context.notice_sender.close()
        self.context.sweeps.close()
        await self.context.reconciler.close()
        await self.leader_election.close()
        self.context.store.close()


def make_reconciler(
    store: Store,
    engine: Engine,
    *,
    service_urls: tuple[str, ...],
    policy_manager: PolicyManager,
    accounting: UsageAccounting,
    limits: LifecycleLimits,
    log: logging.Logger,
    clock: Callable[[], float],
    data_set_tracker: DataSetTracker,
    progress_rates: ProgressRates,
    monotonic: Callable[[], float] = time.monotonic,
) -> Reconciler:
    """Build the reconciler and its parts. monotonic: a clock for pauses and timeouts."""
    awake = asyncio.Event()
    liveness = Liveness(monotonic)
    quarantine = Quarantine(store, limits.retry_s, monotonic, log)
    status_cache = StatusCache(
        store, engine, limits, data_set_tracker, progress_rates, isolate=quarantine.isolate_gang
    )
    planner = Planner(
        store, engine, status_cache, policy_manager, accounting, limits, log, quarantine, monotonic
    )
    executor = Executor(
        store,
        engine,
        service_urls,
        status_cache=status_cache,
        quarantine=quarantine,
        liveness=liveness,
        pause_growth=planner.pause_growth,
        wake=awake.set,
        clock=clock,
        log=log,
    )
    return Reconciler(
        store,
        engine,
        service_urls=service_urls,
        limits=limits,
        clock=clock,
        log=log,
        awake=awake,
        quarantine=quarantine,
        status_cache=status_cache,
        liveness=liveness,
        accounting=accounting,
        policy_manager=policy_manager,
        planner=planner,
        executor=executor,
    )


def _context(
    app: MiniclusterHub,
    hub_auth: ServiceAuth,
    store: Store,
    reconciler: Reconciler,
    clock: SteadyClock,
    catalogue: Catalogue,
    logs: JobLogs,
) -> Context:
    storage = app.storage(store, lambda name: reconciler.accounting.quotas.storage_gb(name), app.service_dir)
    log: Any = app.log
    limits, idle = ServerLimits(app.server_gpus, app.server_gpu_s), SessionLimits(app.session_idle_s)
    run_files = RunFiles(app.service_dir / "runs")
    blobs, machines = BlobFiles(app.service_dir / "blobs"), _machines(app, reconciler, clock)
    recorder = Recorder(store, logs, run_files, log)
    return Context(
        store=store,
        reconciler=reconciler,
        status_cache=reconciler.status_cache,
        accounting=reconciler.accounting,
        reservations=reconciler.reservations,
        policy_manager=reconciler.policy_manager,
        quarantine=reconciler.quarantine,
        data_set_tracker=reconciler.status_cache.data_set_tracker,
        server_places=make_server_places(store, reconciler, limits, clock, log),
        logs=logs,
        blobs=blobs,
        hub_auth=hub_auth,
        metrics=_metrics(store, reconciler, machines),
        limits=_limits(app),
        clock=clock,
        log=log,
        catalogue=catalogue,
        data_sets=_data_sets(app, store, storage, clock),
        storage=storage,
        compile_caches=_compile_caches(app, store, storage, clock),
        publications=Publications(catalogue, app.image_limit_bytes),
        what_if=_what_if(app, store, reconciler, clock),
        notice_sender=app.notice_sender(store, clock, log),
        machines=machines,
        run_readings=RunReadings(run_files.readings_path, clock, log),
        recorder=recorder,
        job_environment=pip_environment(app.pip_index_url),
        sweeps=make_sweeps(store, reconciler, storage, blobs, _admission(app), clock, log),
        sessions=make_sessions(store, reconciler, logs, idle, clock, log),
        serving=_serving(app, hub_auth, store, reconciler, storage, recorder, clock),
        admission=_admission(app),
        idle_limits=app.idle_limits,
    )


def _data_sets(app: MiniclusterHub, store: Store, storage: Storage, clock: SteadyClock) -> DataSetFiles:
    log: Any = app.log
    files = BlobFiles(app.service_dir / "data")
    data_sets = DataSetFiles(store, files, clock, log, storage, app.data_grace_s, app.data_versions_s)
    storage.before_refusal(data_sets.make_room)
    return data_sets


def _serving(
    app: MiniclusterHub,
    hub_auth: ServiceAuth,
    store: Store,
    reconciler: Reconciler,
    storage: Storage,
    recorder: Recorder,
    clock: Callable[[], float],
) -> Serving:
    log: Any = app.log
    front = ModelFront(hub_auth.base_url, app.model_front, clock, log)
    submission = ReplicaSubmission(store, storage, reconciler.accounting, _admission(app), clock)
    secret, limits = app.serving_secret(), app.serving_limits
    return make_serving(store, reconciler, front, submission, recorder, secret, limits, clock, log)


def make_serving(
    store: Store,
    reconciler: Reconciler,
    front: ModelFront,
    submission: ReplicaSubmission,
    recorder: Recorder,
    secret: bytes,
    limits: ServingLimits,
    clock: Callable[[], float],
    log: logging.Logger,
) -> Serving:
    status_cache = reconciler.status_cache
    jobs = ReplicaControl(
        lambda job_id, reason: reconciler.apply_event(job_id, JobEvent.STOP_ASKED, reason), reconciler.wake
    )
    automatic = AutoServing(store, recorder, clock, log)
    manager = ModelManager(
        store, status_cache, submission, jobs, automatic, front, limits, secret, clock, log
    )
    status_cache.serve_secret = manager.secret_of
    return Serving(manager, front, Passing(front), limits)


def _metrics(store: Store, reconciler: Reconciler, machines: Machines) -> Metrics:
    metrics = Metrics()
    metrics.collect_from(store.open_state, reconciler.status_cache.nodes, reconciler.quarantine)
    metrics.registry.register(MachineCollector(machines.newest))
    return metrics


def _compile_caches(app: MiniclusterHub, store: Store, storage: Storage, clock: SteadyClock) -> CompileCaches:
    log: Any = app.log
    caches = CompileCaches(store, BlobFiles(app.service_dir / "compiled"), storage, clock, log)
    storage.before_refusal(caches.make_room)
    return caches


def _machines(app: MiniclusterHub, reconciler: Reconciler, clock: SteadyClock) -> Machines:
    own_nodes: tuple[str, ...] = reconciler.status_cache.engine.own_nodes
    log: Any = app.log
    return Machines(app.service_dir / "readings" / "machines", own_nodes, clock, log)


def _admission(app: MiniclusterHub) -> AdmissionLimits:
    return AdmissionLimits(
        max_ranks=app.max_ranks, max_open_jobs=app.max_open_jobs, max_priority=app.max_priority
    )


def make_sweeps(
    store: Store,
    reconciler: Reconciler,
    storage: Storage,
    blobs: BlobFiles,
    admission: AdmissionLimits,
    clock: Callable[[], float],
    log: logging.Logger,
) -> SweepManager:
    status_cache = reconciler.status_cache
    submission = Submission(store, status_cache, storage, reconciler.accounting, admission, clock)
    jobs = JobControl(
        lambda job_id, reason: reconciler.apply_event(job_id, JobEvent.STOP_ASKED, reason), reconciler.wake
    )
    return SweepManager(store, status_cache, submission, jobs, Checkpoints(store, blobs.of_job), clock, log)


def make_sessions(
    store: Store,
    reconciler: Reconciler,
    logs: JobLogs,
    limits: SessionLimits,
    clock: Callable[[], float],
    log: logging.Logger,
) -> SessionManager:
    status_cache = reconciler.status_cache
    jobs = SessionJobs(
        stored=lambda: status_cache.stored,
        ranks_of=status_cache.ranks_of,
        stop=lambda job_id, reason: reconciler.apply_event(job_id, JobEvent.STOP_ASKED, reason),
        annotate=status_cache.annotate,
        orders_changed=status_cache.notify_orders,
        warn=lambda job, reason: status_cache.send_notices(
            job.owner, NoticeEvent.SESSION_IDLE, clock(), job=job, reason=reason
        ),
    )
    sessions = SessionManager(store, jobs, logs, limits, clock, log)
    status_cache.cell_signals = sessions.signals
    status_cache.changes.call_first(sessions.job_changed)
    return sessions


def make_server_places(
    store: Store,
    reconciler: Reconciler,
    limits: ServerLimits,
    clock: Callable[[], float],
    log: logging.Logger,
) -> ServerPlaces:
    return ServerPlaces(
        store,
        reconciler.status_cache.engine,
        reservations=reconciler.reservations,
        accounting=reconciler.accounting,
        excluded_from=reconciler.excluded_from,
        changes=reconciler.status_cache.changes,
        slots_changed=reconciler.slots_changed,
        wake=reconciler.wake,
        limits=limits,
        clock=clock,
        log=log,
    )


def _limits(app: MiniclusterHub) -> ApiLimits:
    return ApiLimits(
        payload_bytes=app.payload_limit_bytes,
        result_bytes=app.result_limit_bytes,
        artifacts_keep_days=app.artifacts_keep_days,
        jobs_keep_days=app.jobs_keep_days,
        user_rate=app.user_rate,
        report_rate=app.report_rate,
        streams=app.user_streams,
    )


def _policy_manager(app: MiniclusterHub, store: Store, clock: SteadyClock) -> PolicyManager:
    """Return the manager of the active policy. Raises ValueError for unusable settings."""
    try:
        choice = PolicyChoice(policy=app.policy, placement=app.placement)
        custom = app.custom_policies(Path(app.data_dir), app.log)  # pyright: ignore[reportArgumentType]
        return PolicyManager(store, choice, clock, app.log, custom)  # pyright: ignore[reportArgumentType]
    except ChoiceRefused as refused:
        raise ValueError(f"{refused.message}. {refused.hint}") from refused


def _what_if(app: MiniclusterHub, store: Store, reconciler: Reconciler, clock: SteadyClock) -> WhatIfWorker:
    return WhatIfWorker(
        store,
        lambda: reconciler.policy_manager.active.choice,
        reconciler.status_cache.node_views,
        clock,
        app.log,  # pyright: ignore[reportArgumentType]
        min_run_s=app.min_run_s,
        half_life_s=app.usage_half_life_days * 86400,
    )


async def _first(*works: asyncio.Future[Any]) -> None:
    """Wait until the first of these ends. Raises its error."""
    done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
    for work in done:
        work.result()


def _address(sockets: list[socket]) -> str:
    host, port = sockets[0].getsockname()[:2]
    return f"http://{host}:{port}"
