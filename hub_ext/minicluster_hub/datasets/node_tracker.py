"""Which data sets the nodes need, and which they have, as their data set agents report.

A data set agent fetches each data set once per node, for all jobs that use it. Reports are only in memory,
since agents repeat them. The store records when an attempt has all its data sets: its ranks start then, and
a restart of the service must not stop them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from minicluster.wire import (
    DataAgentOrders,
    DataAgentReport,
    DataOrder,
    DataSetState,
    DataSetStatus,
    DataUse,
    ErrorKind,
    JobError,
    JobState,
)
from minicluster_hub.engines.node_tokens import NodeTokens
from minicluster_hub.jobs.records import DataView, GangRecord, GangTarget, JobRecord, StoredState, TaskState
from minicluster_hub.scheduling.idle import GpuUse
from minicluster_hub.support.notifier import Notifier

DATA = "data"
"""Key of the notifier: the data sets that a node needs have changed."""
GPUS = "gpus"
"""Key of the notifier: a data set agent reported the use of its GPUs."""
SILENT_S, FRESH_S = 30.0, 60.0
"""After these seconds an agent counts as silent, and its readings as old. Agents report every 10 s."""


@dataclass
class _Node:
    """The newest report of a node's data set agent. moved_at: when it last showed progress."""

    sets: dict[str, DataSetStatus] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    received_at: float = 0.0
    moved_at: float = 0.0


class DataSetTracker:
    """secret: derives the nodes' tokens and the names of folders."""

    def __init__(self, secret: str = "", clock: Callable[[], float] = time.time) -> None:
        self._secret = secret or secrets.token_hex(32)
        self.tokens = NodeTokens(self._secret)
        self.notifier = Notifier()
        self.gpus = GpuReadings()
        self._clock = clock
        self._began = clock()
        self._nodes: dict[str, _Node] = {}
        self._wanted: frozenset[tuple[str, DataOrder]] = frozenset()

    def folder(self, use: DataUse) -> str:
        """Return the name of a version's folder in a node's cache. Nobody can guess it."""
        text = f"folder\0{use.owner}\0{use.manifest_sha256}"
        return hmac.new(self._secret.encode(), text.encode(), hashlib.sha256).hexdigest()[:40]

    # --- what nodes need ----------------------------------------------------------------------

    def update(self, stored: StoredState) -> None:
        """Take the newest records, and wake data set agents whose nodes need other data sets."""
        before, self._wanted = self._wanted, frozenset(self._wanted_in(stored))
        if self._wanted != before:
            self.notifier.notify(DATA)

    @property
    def busy(self) -> bool:
        """Whether a job needs a data set."""
        return bool(self._wanted)

    def orders(self, nodes: Collection[str]) -> DataAgentOrders:
        """Return the data sets that these nodes need, each once, however many jobs use it."""
        wanted: dict[str, DataOrder] = {}
        for node, order in sorted(self._wanted, key=lambda one: one[1].attempt):
            if node in nodes:
                wanted[order.folder] = order
        orders = tuple(wanted.values())
        text = "".join(order.model_dump_json() for order in orders)
        return DataAgentOrders(version=hashlib.sha256(text.encode()).hexdigest()[:16], wanted=orders)

    def manifests(self, nodes: Collection[str]) -> frozenset[str]:
        """Return the manifests of the versions that these nodes need."""
        return frozenset(order.manifest_sha256 for node, order in self._wanted if node in nodes)

    def _wanted_in(self, stored: StoredState) -> Iterator[tuple[str, DataOrder]]:
        for gang, job in _with_data(stored):
            for node in _nodes_of(stored, gang):
                for use in job.spec.data:
                    yield (
                        node,
                        DataOrder(
                            name=use.name,
                            folder=self.folder(use),
                            manifest_sha256=use.manifest_sha256,
                            size_bytes=use.size_bytes,
                            files=use.files,
                            attempt=job.attempt_id or 0,
                        ),
                    )

    # --- what nodes have ----------------------------------------------------------------------

    def receive(self, report: DataAgentReport) -> bool:
        """Take a data set agent's report; return whether its data sets changed."""
        now, sets = self._clock(), {one.folder: one for one in report.sets}
        changed = False
        for name in report.nodes:
            node = self._nodes.setdefault(name, _Node(moved_at=self._began))
            node.received_at, node.addresses = now, report.addresses
            if node.sets != sets:
                node.sets, node.moved_at, changed = sets, now, True
        if self.gpus.receive(report, now):
            self.notifier.notify(GPUS)
        return changed

    def addresses(self, nodes: Iterable[str]) -> set[str]:
        """Return the reported addresses of these nodes on all their networks."""
        return {address for name in nodes if name in self._nodes for address in self._nodes[name].addresses}

    def nodes_with(self, use: DataUse, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return the nodes among these that have a data set."""
        folder = self.folder(use)
        return tuple(
            name
            for name in sorted(nodes)
            if name in self._nodes and _is_ready(self._nodes[name].sets.get(folder), 0)
        )

    def views(self, stored: StoredState) -> dict[int, DataView]:
        """Return the progress of data sets by gang, for jobs that start or that other nodes may join."""
        views: dict[int, DataView] = {}
        for gang, job in _with_data(stored):
            if job.state is JobState.STARTING:
                views[gang.id] = self._view(job, _nodes_of(stored, gang))
            elif job.state is JobState.RUNNING and job.spec.fault_tolerant:
                views[gang.id] = self._view_of_running(job, _nodes_of(stored, gang))
        return views

    def _view_of_running(self, job: JobRecord, nodes: tuple[str, ...]) -> DataView:
        failures = {name: self._failure(job, name) for name in nodes}
        lacking = {name: failure for name, failure in failures.items() if failure}
        return DataView(True, "", self._began, lacking=lacking)

    def _failure(self, job: JobRecord, name: str) -> JobError | None:
        """Return why a node cannot get a data set of a job's attempt; None if it may still come."""
        attempt, node = job.attempt_id or 0, self._nodes.get(name, _Node())
        for use in job.spec.data:
            standing = node.sets.get(self.folder(use))
            if standing and standing.standing is DataSetState.FAILED and standing.attempt >= attempt:
                return _error(use, name, standing)
        return None

    def _view(self, job: JobRecord, nodes: tuple[str, ...]) -> DataView:
        attempt, parts = job.attempt_id or 0, list[str]()
        of = {name: self._nodes.get(name, _Node(moved_at=self._began)) for name in nodes}
        moved_at = max((node.moved_at for node in of.values()), default=self._began)
        if job.data_attempt_id == attempt:
            return DataView(True, "", moved_at)
        trouble = next(filter(None, (self._failure(job, name) for name in nodes)), None)
        if trouble:
            return DataView(False, trouble.message, moved_at, trouble)
        for use in job.spec.data:
            folder, missing = self.folder(use), list[str]()
            for name, node in of.items():
                standing = node.sets.get(folder)
                if not _is_ready(standing, attempt):
                    missing.append(f"{name} {self._how_far(node, standing, use)}")
            if missing:
                parts.append(f"fetching {use.name}: {', '.join(missing)}")
        return DataView(not parts, "; ".join(parts), moved_at)

    def _how_far(self, node: _Node, standing: DataSetStatus | None, use: DataUse) -> str:
        if self._clock() - node.received_at > SILENT_S:
            return "waits for its data set agent, which does not answer"
        if standing is None:
            return "0 %"
        if standing.detail:
            return f"waits: {standing.detail}"
        if standing.standing is DataSetState.READY or standing.done_bytes >= use.size_bytes:
            return "checks it"
        return f"{100 * standing.done_bytes // use.size_bytes} %"


def _is_ready(standing: DataSetStatus | None, attempt: int) -> bool:
    return standing is not None and standing.standing is DataSetState.READY and standing.attempt >= attempt


def _error(use: DataUse, node: str, standing: DataSetStatus) -> JobError:
    message = f"{node} could not fetch the data set {use.name}: {standing.detail}"
    return JobError(kind=ErrorKind.START, node=node, message=message, hint=standing.hint)


def _with_data(stored: StoredState) -> Iterator[tuple[GangRecord, JobRecord]]:
    jobs = {job.id: job for job in stored.jobs if job.spec.data}
    for gang in stored.gangs:
        if gang.job_id in jobs and gang.target is GangTarget.KEEP:
            yield gang, jobs[gang.job_id]


def _nodes_of(stored: StoredState, gang: GangRecord) -> tuple[str, ...]:
    tasks = (task for task in stored.tasks if task.gang_id == gang.id and task.state is not TaskState.ENDED)
    return tuple(dict.fromkeys(task.node for task in tasks))


@dataclass(frozen=True, slots=True)
class _Reading:
    use: GpuUse
    received_at: float


class GpuReadings:
    """The use of GPUs that data set agents report, by node and GPU id. Old readings are ignored."""

    def __init__(self) -> None:
        self._readings: dict[tuple[str, str], _Reading] = {}

    def receive(self, report: DataAgentReport, now: float) -> bool:
        """Take a data set agent's report; return whether it has GPUs."""
        for node in report.nodes:
            for reading in report.gpus:
                use = GpuUse(now - reading.idle_s, reading.held_bytes)
                self._readings[node, reading.gpu] = _Reading(use, now)
        return bool(report.gpus)

    def use(self, node: str, gpus: Collection[str], now: float) -> GpuUse | None:
        """Return the use of these GPUs of a node together; None unless each has a fresh reading."""
        found = [self._readings.get((node, gpu)) for gpu in gpus]
        fresh = [one.use for one in found if one is not None and now - one.received_at <= FRESH_S]
        if not gpus or len(fresh) < len(gpus):
            return None
        return GpuUse(max(one.used_at for one in fresh), max(one.held_bytes for one in fresh))
