"""The metrics for Prometheus. What the store and the engine know is read at each scrape, not stored here."""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from tornado.web import RequestHandler

from minicluster.wire import JobState, NodeList, SlotUse
from minicluster_hub.control.quarantine import Quarantine
from minicluster_hub.jobs.records import EventRecord, JobRecord, StoredState
from minicluster_hub.store import Store, StoreError
from minicluster_hub.support.notifier import Notifier

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 3600, 4 * 3600, 24 * 3600)


class Metrics:
    """All metrics of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "minicluster_requests_total", "Requests", ("method", "path", "status"), registry=self.registry
        )
        self._request_seconds = Histogram(
            "minicluster_request_seconds", "Time until the answer", ("path",), registry=self.registry
        )
        self._streams = Gauge(
            "minicluster_event_streams", "Open server-sent event connections", registry=self.registry
        )
        self._ended = Counter(
            "minicluster_jobs_ended_total", "Jobs that ended", ("state",), registry=self.registry
        )
        self._queued = Histogram(
            "minicluster_job_queue_seconds",
            "From a job's submission to its slots",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._starting = Histogram(
            "minicluster_job_start_seconds",
            "From a job's slots to its running ranks",
            buckets=_SECONDS,
            registry=self.registry,
        )

    def request_done(self, method: str, path: str, status: int, seconds: float) -> None:
        # Clients may send any name as the method, and each name would make a new time series.
        shown = method if method in RequestHandler.SUPPORTED_METHODS else "other"
        self._requests.labels(shown, path, str(status)).inc()
        self._request_seconds.labels(path).observe(seconds)

    @contextmanager
    def stream_open(self) -> Iterator[None]:
        with self._streams.track_inprogress():
            yield

    def job_ended(self, state: JobState) -> None:
        self._ended.labels(state.value).inc()

    def job_started(self, history: Iterable[EventRecord]) -> None:
        """Observe the times of a started job's first attempt, from its history."""
        at: dict[str, float] = {}
        for event in history:
            at.setdefault(event.kind, event.at)
        if "submitted" in at and "admitted" in at:
            self._queued.observe(at["admitted"] - at["submitted"])
        if "admitted" in at and "ranks-started" in at:
            self._starting.observe(at["ranks-started"] - at["admitted"])

    def collect_from(
        self, open_state: Callable[[], StoredState], nodes: Callable[[], NodeList], quarantine: Quarantine
    ) -> None:
        self.registry.register(ClusterCollector(open_state, nodes, quarantine))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class ClusterCollector(Collector):
    """Open jobs by state, placed servers by node, slots by use, and failures, read at each scrape."""

    def __init__(
        self, open_state: Callable[[], StoredState], nodes: Callable[[], NodeList], quarantine: Quarantine
    ) -> None:
        self._open_state = open_state
        self._nodes = nodes
        self._quarantine = quarantine

    def describe(self) -> Iterable[Metric]:
        """Return nothing: so registering does not read the store."""
        return ()

    def collect(self) -> Iterable[Metric]:
        stored = self._open_state()
        states = Tally(job.state for job in stored.jobs)
        jobs = GaugeMetricFamily("minicluster_jobs", "Open jobs", labels=("state",))
        for state in JobState:
            if not state.terminal:
                jobs.add_metric([state.value], states[state])
        yield jobs
        servers = GaugeMetricFamily(
            "minicluster_servers", "Notebook servers that have a place", labels=("node",)
        )
        for node, count in sorted(Tally(server.node for server in stored.servers).items()):
            servers.add_metric([node], count)
        yield servers
        slots = GaugeMetricFamily("minicluster_slots", "Slots by use", labels=("kind", "use"))
        for (kind, use), count in sorted(_slot_uses(self._nodes()).items()):
            slots.add_metric([kind, use], count)
        yield slots
        failures = CounterMetricFamily(
            "minicluster_step_failures", "What failed in the job service for one job, gang or task alone"
        )
        failures.add_metric([], self._quarantine.total)
        yield failures
        aside = GaugeMetricFamily(
            "minicluster_steps_set_aside", "What fails again and again; the log says what and why"
        )
        aside.add_metric([], len(self._quarantine.exhausted()))
        yield aside


def _slot_uses(nodes: NodeList) -> dict[tuple[str, str], float]:
    uses: defaultdict[tuple[str, str], float] = defaultdict(float)
    for node in nodes.nodes:
        for slot in node.slots:
            uses[slot.kind, _use(slot) if node.up else "down"] += slot.share
    return uses


def _use(slot: SlotUse) -> str:
    if slot.server is not None:
        return "server"
    return "warm" if slot.warm else "free" if slot.owner is None else "busy"


class JobCounter(Protocol):
    """The part of Metrics that JobWatch calls."""

    def job_started(self, history: list[EventRecord]) -> None: ...

    def job_ended(self, state: JobState) -> None: ...


class JobWatch:
    """Counts each start and each end of a job once, however many notifications there are."""

    def __init__(self, store: Store, counter: JobCounter, log: logging.Logger) -> None:
        self._store = store
        self._counter = counter
        self._log = log
        self._open = {job.id: job.state is not JobState.QUEUED for job in store.open_state().jobs}

    async def run(self, changes: Notifier) -> None:
        async with changes.listen() as subscription:
            while True:
                self._count([key for key in await subscription.wait(None) if isinstance(key, int)])

    def _count(self, job_ids: list[int]) -> None:
        try:
            for record in self._store.jobs_by_id(job_ids):
                self._count_one(record)
        except StoreError:
            self._log.warning("jobs %s are not in the metrics: the store did not answer", job_ids[:9])

    def _count_one(self, record: JobRecord) -> None:
        # A job that ended before the watch began is not in `_open`: it was counted already.
        if record.state.terminal and record.id not in self._open:
            return
        started = self._open.setdefault(record.id, False)
        if not started and record.started_at is not None:
            self._counter.job_started(self._store.events(record.id))
            self._open[record.id] = True
        if record.state.terminal:
            self._counter.job_ended(record.state)
            del self._open[record.id]
