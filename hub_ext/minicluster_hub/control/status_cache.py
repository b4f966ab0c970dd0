"""The newest observation, for readers: the orders of tasks, and jobs and nodes as people see them.

The reconciler updates it at each tick. Handlers read it, and wait for notifications instead of polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from minicluster.wire import (
    Job,
    JobState,
    NodeList,
    NoticeEvent,
    ProfileOrder,
    ProfileRequest,
    RankStack,
    RankState,
    RunOrder,
    StackStatus,
    TaskOrders,
    Versions,
)
from minicluster.wire.sessions import CellSignals
from minicluster_hub.control.progress_rates import ProgressRates
from minicluster_hub.control.stack_dumps import StackDumps
from minicluster_hub.datasets.node_tracker import DataSetTracker
from minicluster_hub.engines.base import Engine
from minicluster_hub.jobs.connectivity import unreachable_message
from minicluster_hub.jobs.gang_state import ClusterState, GangState, Isolate, LifecycleLimits, no_isolation
from minicluster_hub.jobs.orders import TaskEnded, orders_for
from minicluster_hub.jobs.records import (
    GangTarget,
    JobRecord,
    NodeView,
    RankRecord,
    StoredState,
    TaskRecord,
    Wait,
)
from minicluster_hub.jobs.slot_numbers import total
from minicluster_hub.jobs.views import IdleGpus, brief, job_message, node_list
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import Snapshot, Topology
from minicluster_hub.scheduling.standing import Planned
from minicluster_hub.storage.fresh_parts import FreshParts
from minicluster_hub.store import Store
from minicluster_hub.support.notifier import NODES, NOTICES, Notifier

_MOST_NOTES = 3
STACKS_S = 3.0
"""How long agents may take to answer with the stacks of their ranks."""

_ANNOUNCED_EACH_S = 0.3
"""How long parts that a notebook uploads are collected: each message has the names of all."""

MOST_JOBS = 1000
"""Most jobs whose JSON is cached; each is a line of a list, without traceback and spec."""


@dataclass(frozen=True)
class PresentAttempt:
    """What a task runs. ranks: its own."""

    job_id: int
    attempt: int
    ranks: tuple[int, ...]


class StatusCache:
    """`changes` notifies a job's id, or NODES, when what people see of the job or of the nodes changed.

    `orders_notifier` notifies a task's id when its orders changed. `observed` is set at the first
    observation. Before that, no request may be answered: agents of living tasks would get TaskEnded.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        limits: LifecycleLimits,
        data_set_tracker: DataSetTracker,
        progress_rates: ProgressRates,
        isolate: Isolate = no_isolation,
    ) -> None:
        self.changes = Notifier()
        self.orders_notifier = Notifier()
        self.stack_dumps = StackDumps()
        self.data_set_tracker = data_set_tracker
        self.progress_rates = progress_rates
        self.engine = engine
        self.observed = asyncio.Event()
        self.stored = StoredState()
        self.gang_states: dict[int, GangState] = {}
        self.planned = Planned(Snapshot(0.0, (), FreeSlots(), Topology({})))
        self._store = store
        self._limits = limits
        self._isolate = isolate
        self.fresh_parts = FreshParts()
        self._notes: dict[int, dict[str, str]] = {}
        self._leaving: set[int] = set()
        self.cell_signals: Callable[[int], CellSignals] = lambda job_id: CellSignals()
        self.serve_secret: Callable[[int], str] = lambda model_id: ""
        self._profiles: dict[int, ProfileOrder] = {}
        self._unannounced: set[str] = set()
        self._announcing = False
        self._idle: Mapping[int, IdleGpus] = {}
        self._closed: Mapping[str, str] = {}
        self._waits: dict[int, Wait] = {}
        self._versions: dict[int, str] = {}
        self.overview = OverviewCache(store.jobs_by_id, self.summaries, self.nodes)
        self.changes.call_first(self.overview.forget)

    # --- set by the reconciler ----------------------------------------------------------------

    def update(self, state: ClusterState) -> None:
        """Take a new state of the cluster. A gang whose state could not be computed keeps its last one."""
        stored = state.stored
        before, self.stored = self.gang_states, stored
        self.gang_states = {gang.id: before[gang.id] for gang in stored.gangs if gang.id in before}
        self.gang_states.update({gang_state.gang.id: gang_state for gang_state in state.gang_states})
        for job_id, _ in _data_messages(self.gang_states.values()) ^ _data_messages(before.values()):
            self.changes.notify(job_id)
        self.data_set_tracker.update(stored)
        self.progress_rates.update(stored)
        for gang_state in self.gang_states.values():
            if gang_state.job is not None:
                self.annotate(gang_state.job.id, unreachable_message(gang_state.unreachable), "connectivity")
        self._forget_ends({f"end-{task.id}" for task in stored.tasks})
        open_jobs = {job.id for job in stored.jobs}
        self.stack_dumps.keep_only(open_jobs, {task.id for task in stored.tasks})
        for job_id in self._profiles.keys() - open_jobs:
            del self._profiles[job_id]
        self.observed.set()

    def _forget_ends(self, living: Collection[str]) -> None:
        """Remove what lost tasks noted about the ends of their ranks: the job may go on without them."""
        for job_id, notes in list(self._notes.items()):
            for about in [one for one in notes if one.startswith("end-") and one not in living]:
                self.annotate(job_id, "", about)

    def set_waits(self, waits: Iterable[Wait]) -> None:
        """Set why jobs wait, and notify the jobs whose reason changed."""
        before, self._waits = self._waits, {wait.job_id: wait for wait in waits}
        for job_id in self._waits.keys() | before.keys():
            if self._waits.get(job_id) != before.get(job_id):
                self.changes.notify(job_id)

    def receive_records(self, task: TaskRecord, run: RunOrder, data: bytes, now: float) -> bool:
        """Take training records of a task's ranks; return whether the estimate of their job's end changed."""
        gang_state = self.gang_states.get(task.gang_id)
        if gang_state is None or gang_state.job is None:
            return False
        replicas = int(
            sum(total(one.slots) for one in gang_state.tasks) // gang_state.job.spec.slots_per_replica
        )
        return self.progress_rates.receive(run.job_id, run.restart_count + 1, replicas, data, now)

    def notify(self, job_id: int | None = None) -> None:
        """Notify that who holds the nodes' slots may have changed, and the job, if one is given."""
        if job_id is not None:
            self.changes.notify(job_id)
        self.changes.notify(NODES)

    def send_notices(
        self,
        owner: str,
        event: NoticeEvent,
        now: float,
        *,
        server: str | None = None,
        job: JobRecord | None = None,
        reason: str = "",
    ) -> None:
        """Send the owner of a notebook server or a job an e-mail or a webhook call, if the owner wants it.

        Notices about a job's state are sent where it changes, by the store.
        """
        if self._store.notices.tell(owner, event, now, server=server, job=job, reason=reason):
            self.changes.notify(NOTICES)

    def notify_orders(self) -> None:
        """Wake the agents whose orders changed since the last call."""
        before, self._versions = self._versions, {}
        gangs = {gang.id: gang for gang in self.stored.gangs}
        for gang_id, tasks in groupby(self.stored.tasks, lambda task: task.gang_id):
            with self._isolate("sending orders to", gangs[gang_id]):
                self._versions.update({task.id: self._version(task) for task in tasks})
        for task_id in self._versions.keys() | before.keys():
            if self._versions.get(task_id) != before.get(task_id):
                self.orders_notifier.notify(task_id)

    def _version(self, task: TaskRecord) -> str:
        try:
            return self.orders(task).version
        except TaskEnded:
            return "over"

    # --- read by handlers ---------------------------------------------------------------------

    def orders(self, task: TaskRecord) -> TaskOrders:
        """Return what the task should be doing now. Raises TaskEnded."""
        gang_state = self.gang_states.get(task.gang_id)
        if gang_state is None:
            raise TaskEnded(f"task {task.id} is over")
        stack_dump_id = self.stack_dumps.newest_id(gang_state.job.id) if gang_state.job else 0
        uses = gang_state.job.spec.data if gang_state.job else ()
        folders = {use.name: self.data_set_tracker.folder(use) for use in uses}
        return orders_for(
            task,
            gang_state,
            stack_dump_id=stack_dump_id,
            limits=self._limits,
            folders=folders,
            leave=gang_state.job is not None and gang_state.job.id in self._leaving,
            profile=self._profiles.get(gang_state.job.id) if gang_state.job else None,
            cells=self._cell_signals(gang_state.job),
            coming=self.coming(task) if _takes_parts(gang_state) else (),
            serve_secret=self._serve_secret(gang_state.job),
        )

    def coming(self, task: TaskRecord) -> tuple[str, ...]:
        """Return the large parts that a task's owner has just uploaded."""
        gang_state = self.gang_states.get(task.gang_id)
        return self.fresh_parts.of(gang_state.gang.owner) if gang_state is not None else ()

    def blob_came(self, owner: str, sha256: str) -> None:
        """Have the owner's idle tasks fetch a blob that is a part of a cell."""
        if not self.fresh_parts.came(owner, sha256):
            return
        self._unannounced.add(owner)
        if not self._announcing:
            self._announce_parts()

    def _announce_parts(self) -> None:
        """Announce what has come, and again after a pause, until nothing has."""
        owners, self._unannounced = self._unannounced, set()
        self._announcing = bool(owners)
        if owners:
            asyncio.get_running_loop().call_later(_ANNOUNCED_EACH_S, self._announce_parts)
        for gang_state in self.gang_states.values():
            if gang_state.gang.owner in owners and _takes_parts(gang_state):
                for task in gang_state.tasks:
                    self.orders_notifier.notify(task.id)

    def _cell_signals(self, job: JobRecord | None) -> CellSignals:
        return self.cell_signals(job.id) if job is not None and job.spec.session else CellSignals()

    def _serve_secret(self, job: JobRecord | None) -> str:
        return self.serve_secret(job.spec.serve.model) if job is not None and job.spec.serve else ""

    def present_attempt(self, task: TaskRecord) -> PresentAttempt | None:
        """Return the attempt that a task runs; None if it runs none. Raises TaskEnded.

        `orders` tells it too, with all else, and takes ten times as long.
        """
        gang_state = self.gang_states.get(task.gang_id)
        if gang_state is None or gang_state.gang.target is GangTarget.END:
            raise TaskEnded(f"task {task.id} is over")
        job = gang_state.job
        if job is None or job.attempt_id is None:
            return None
        ranks = tuple(rank.rank for rank in gang_state.ranks if rank.task_id == task.id)
        return PresentAttempt(job.id, job.attempt_id, ranks)

    def ranks_of(self, job_id: int) -> tuple[int, ...]:
        """Return the ranks of a job's newest attempt."""
        states = self.gang_states.values()
        found = next((one for one in states if one.job and one.job.id == job_id), None)
        return tuple(rank.rank for rank in found.living_ranks) if found else ()

    def let_leave(self, job_id: int, *, leave: bool = True) -> None:
        """Tell the ranks of a trial's job that it is pruned, from now on or (leave=False) no longer."""
        if leave is (job_id in self._leaving):
            return
        (self._leaving.add if leave else self._leaving.discard)(job_id)
        self.notify_orders()

    def profile(self, job_id: int, request: ProfileRequest) -> None:
        """Have ranks of a running job profile their next steps."""
        before = self._profiles.get(job_id)
        # After a restart of the service, no id may be one that agents have obeyed.
        number = max(time.time_ns() // 1_000_000, before.id + 1 if before else 0)
        self._profiles[job_id] = ProfileOrder(id=number, steps=request.steps, ranks=request.ranks)
        self.notify_orders()

    async def stacks(self, job_id: int) -> tuple[RankStack, ...]:
        """Return the stacks of a running job's ranks; those whose agents do not answer are AWAY."""
        states = self.gang_states.values()
        gang_state = next((one for one in states if one.job and one.job.id == job_id), None)
        if gang_state is None:
            return ()
        request = self.stack_dumps.begin(job_id, [task.id for task in gang_state.tasks])
        self.notify_orders()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STACKS_S):
                await request.complete.wait()
        self.stack_dumps.end(request)
        return tuple(request.stacks.get(rank.rank, _unseen(rank)) for rank in gang_state.living_ranks)

    def annotate(self, job_id: int, note: str, about: str = "stall") -> None:
        """Show a note beside a running job, one for each subject (`about`); an empty one removes it."""
        notes = self._notes.setdefault(job_id, {})
        before = notes.pop(about, "")
        if note:
            notes[about] = note
        if not notes:
            del self._notes[job_id]
        if note != before:
            self.changes.notify(job_id)

    def environment(self) -> Versions | None:
        """Return the versions that ranks have, if the engine knows them before any rank ran."""
        return self.engine.environment()

    def node_views(self) -> tuple[NodeView, ...]:
        return self.engine.nodes()

    def waits(self) -> tuple[Wait, ...]:
        """Return why jobs wait, in the order of the queue."""
        return tuple(sorted(self._waits.values(), key=lambda wait: wait.position))

    def nodes(self) -> NodeList:
        """Return all nodes and who holds their slots."""
        return node_list(self.engine.nodes(), self.stored, self._idle, self._closed)

    def set_closed(self, closed: Mapping[str, str]) -> None:
        """Set which nodes take nothing new, and why."""
        before, self._closed = self._closed, closed
        if closed != before:
            self.notify()

    def set_idle(self, idle: Mapping[int, IdleGpus]) -> None:
        """Set which notebook servers, by id, leave their GPUs idle."""
        before, self._idle = self._idle, idle
        if idle.keys() != before.keys():
            self.notify()

    def job(self, record: JobRecord) -> Job:
        """Return the job as its owner sees it."""
        shown = self._shown(record, self._nodes_of(record))
        note = _joined(*self._notes_of(record))
        return shown.model_copy(update={"note": note}) if note else shown

    def summaries(self, records: Sequence[JobRecord]) -> tuple[Job, ...]:
        """Return jobs as lists show them, without tracebacks."""
        over = [one.attempt_id for one in records if one.state.terminal and one.attempt_id is not None]
        nodes = self._store.history.nodes(over)
        return tuple(
            brief(self._shown(record, nodes.get(record.attempt_id or 0) or self._nodes_of(record)))
            for record in records
        )

    def _shown(self, record: JobRecord, nodes: tuple[str, ...]) -> Job:
        shown = job_message(record, nodes, self._waits.get(record.id))
        gang_state = self.gang_states.get(record.gang_id or 0)
        data = gang_state.data if gang_state is not None and record.state is JobState.STARTING else None
        return shown.model_copy(update={"reason": data.message}) if data and data.message else shown

    def _notes_of(self, record: JobRecord) -> tuple[Sequence[str], int]:
        """Return a running job's notes, or the first ones of a job that is over; and how many there are."""
        if record.state.terminal:
            return self._store.history.notes(record.id, _MOST_NOTES)
        running = record.state in (JobState.STARTING, JobState.RUNNING)
        notes = list(self._notes.get(record.id, {}).values()) if running else []
        return notes, len(notes)

    def _nodes_of(self, record: JobRecord) -> tuple[str, ...]:
        if record.state is JobState.QUEUED or record.attempt_id is None:
            return ()
        gang_state = self.gang_states.get(record.gang_id or 0)
        if gang_state is not None and not record.state.terminal:
            return tuple(task.node for task in gang_state.tasks)
        return self._store.attempt_nodes(record.attempt_id)


def _joined(notes: Sequence[str], count: int) -> str:
    more = f" ({count - _MOST_NOTES} more notes are in its history.)" if count > _MOST_NOTES else ""
    return " ".join(notes[:_MOST_NOTES]) + more


def _takes_parts(gang_state: GangState) -> bool:
    """Return whether a gang's tasks have time to fetch parts: it is warm, or a session."""
    return gang_state.job is None or gang_state.job.spec.session


def _data_messages(gang_states: Iterable[GangState]) -> set[tuple[int, str]]:
    """Return what the owners of starting jobs see of their data sets."""
    return {(one.job.id, one.data.message) for one in gang_states if one.job and one.data}


def _unseen(rank: RankRecord) -> RankStack:
    over = rank.state is RankState.EXITED
    return RankStack(rank=rank.rank, sight=StackStatus.ENDED if over else StackStatus.UNREACHABLE)


# What all watchers of the lists get. It is read and serialized once for each change, not for each watcher.


class OverviewCache:
    """JSON texts of jobs and nodes, made for the first reader and cached until the job or the nodes change.

    records: reads jobs by their ids. summaries: returns them as lists show them. nodes: returns all nodes.
    """

    def __init__(
        self,
        records: Callable[[Sequence[int]], Sequence[JobRecord]],
        summaries: Callable[[Sequence[JobRecord]], Sequence[Job]],
        nodes: Callable[[], NodeList],
    ) -> None:
        self._records, self._summaries, self._read_nodes = records, summaries, nodes
        self._jobs: dict[int, tuple[str, str]] = {}
        self._nodes: str | None = None

    def forget(self, key: Hashable) -> None:
        """Forget the text of what has changed."""
        if key == NODES:
            self._nodes = None
        elif isinstance(key, int):
            self._jobs.pop(key, None)

    def jobs(self, job_ids: Collection[int], owner: str | None) -> list[str]:
        """Return the texts of those of these jobs that exist and belong to `owner` (None: anybody), by id."""
        if missing := sorted(one for one in job_ids if one not in self._jobs):
            self._read(missing)
        found = (self._jobs[one] for one in sorted(job_ids) if one in self._jobs)
        return [text for its_owner, text in found if owner in (None, its_owner)]

    def _read(self, job_ids: Sequence[int]) -> None:
        if len(self._jobs) + len(job_ids) > MOST_JOBS:
            self._jobs.clear()
        records = self._records(job_ids)
        for record, job in zip(records, self._summaries(records), strict=True):
            self._jobs[record.id] = record.owner, job.model_dump_json()

    def nodes(self) -> str:
        """Return the text of all nodes."""
        if self._nodes is None:
            self._nodes = self._read_nodes().model_dump_json()
        return self._nodes
