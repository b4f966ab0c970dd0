"""The state that decisions are made from: each gang with its tasks, its job, and what was observed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

from minicluster.wire import JobState, OutputLimits, RankState
from minicluster_hub.jobs.connectivity import Unreached, unreachable_tasks
from minicluster_hub.jobs.records import (
    DataView,
    GangRecord,
    JobRecord,
    LighthouseView,
    RankRecord,
    SnapshotRecord,
    StoredState,
    TaskRecord,
    TaskState,
    TaskView,
)
from minicluster_hub.jobs.root_cause import is_consequence, root_cause

CLEANUP_STATES = (JobState.STOPPING, JobState.FAILING, JobState.REQUEUING, JobState.YIELDING)
"""States in which the attempt's processes end and its files are uploaded."""

Isolate = Callable[[str, GangRecord], AbstractContextManager[object]]
"""(what is done, gang) -> a context. It handles an exception that this gang causes, so that the loop over the
gangs goes on."""


_Item = TypeVar("_Item")


def no_isolation(_doing: str, _gang: GangRecord) -> AbstractContextManager[object]:
    """Handle nothing: an exception that one gang causes is raised."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class LifecycleLimits:
    """Limits of a job's life cycle; times in seconds.

    stop_timeout_s: how long an attempt may take to end; longer than the agents' own escalation (5 s).
    stopped_upload_timeout_s, failed_upload_timeout_s: the same if all ranks have ended and the agent uploads
        what they wrote. A whole stop must be over within 12 s.
    heartbeat_timeout_s: how long a task may be silent before it counts as lost. Agents report each second.
    boot_timeout_s: the same before an agent's first report: on a busy machine an agent starts slowly.
    suspect_timeout_s: the same once other ranks have lost their connections.
    stall_timeout_s: how long a rank may make no progress before the job's owner is told why; 0: never told.
    keep_warm_s, prepared_s: how long a gang without a job waits for its owner's next one, or, if it was
        prepared, for the first one.
    max_lost_attempts: the job fails after so many attempts in a row that lost a task and left no newer
        snapshot.
    connectivity_timeout_s: how long the tasks of an attempt that needs all of them may fail to reach each
        other.
    min_run_s: how long a started job keeps its slots, whatever the policy says.
    recovery_hold_s: how long tasks stay warm for a job that lost a node and waits for slots. Meanwhile they
        upload its snapshots.
    retry_s: the pause after an unexpected failure for one job; each further failure doubles it.
    """

    heartbeat_timeout_s: float = 3.0
    suspect_timeout_s: float = 1.5
    boot_timeout_s: float = 15.0
    start_timeout_s: float = 300.0
    pull_timeout_s: float = 3600.0
    stop_timeout_s: float = 6.5
    stopped_upload_timeout_s: float = 9.0
    failed_upload_timeout_s: float = 60.0
    keep_warm_s: float = 120.0
    prepared_s: float = 600.0
    max_lost_attempts: int = 3
    stall_timeout_s: float = 120.0
    connectivity_timeout_s: float = 60.0
    min_run_s: float = 60.0
    recovery_hold_s: float = 600.0
    retry_s: float = 1.0
    output: OutputLimits = OutputLimits()  # noqa: RUF009 - frozen

    def end_timeout_s(self, state: JobState, *, uploading: bool) -> float:
        """Return how long an attempt may take to end. uploading: only the upload of files is left."""
        longer = {
            JobState.STOPPING: self.stopped_upload_timeout_s,
            JobState.FAILING: self.failed_upload_timeout_s,
            JobState.YIELDING: self.failed_upload_timeout_s,
        }
        return longer.get(state, self.stop_timeout_s) if uploading else self.stop_timeout_s


@dataclass(frozen=True)
class Observation:
    """What is known beside the store: the engine's views of tasks, and each agent's silence in seconds.

    lighthouses: by gang, of fault-tolerant jobs. data: by gang, how far the data sets of starting jobs are.
    unreached: by task, the addresses that its agent cannot reach. down: names of nodes that are down.
    """

    views: Mapping[int, TaskView]
    silence_s: Mapping[int, float]
    now: float
    lighthouses: Mapping[int, LighthouseView] = field(default_factory=dict[int, LighthouseView])
    data: Mapping[int, DataView] = field(default_factory=dict[int, DataView])
    unreached: Unreached = field(default_factory=dict[int, tuple[str, ...]])
    down: Collection[str] = ()


@dataclass(frozen=True)
class GangState:
    """One gang with its tasks, its job if it has one, and the ranks of that job's newest attempt.

    lost: tasks that have ended, or were silent for longer than `silence_timeout_s` (seconds, by task).
    lighthouse: host:port of the lighthouse, "" if there is none.
    data: how far the data sets of a starting job are, None if it has none.
    unreachable: tasks of a starting attempt that the others do not reach.
    held_for_recovery_until: until when these tasks, which have a job's newest snapshots, are kept for that
        job after it lost a node; 0: no job waits for them.
    """

    gang: GangRecord
    tasks: tuple[TaskRecord, ...]
    job: JobRecord | None
    ranks: tuple[RankRecord, ...]
    lost: tuple[TaskRecord, ...] = field(default=())
    silence_timeout_s: Mapping[int, float] = field(default_factory=dict[int, float])
    snapshots: tuple[SnapshotRecord, ...] = field(default=())
    lighthouse: str = ""
    data: DataView | None = None
    unreachable: tuple[TaskRecord, ...] = field(default=())
    held_for_recovery_until: float = 0.0

    @property
    def assembled(self) -> bool:
        return all(task.state is TaskState.READY for task in self.tasks)

    @property
    def living_ranks(self) -> tuple[RankRecord, ...]:
        """The ranks of tasks that the gang still has. The others belong to lost tasks."""
        held = {task.id for task in self.tasks}
        return tuple(rank for rank in self.ranks if rank.task_id in held)

    @property
    def tolerates_loss(self) -> bool:
        """Whether a fault-tolerant attempt runs: it goes on as long as one task is left."""
        return self.job is not None and self.job.spec.fault_tolerant and self.job.state is JobState.RUNNING

    def idle_until(self, limits: LifecycleLimits) -> float:
        """Return until when a gang without a job is kept warm for its owner's next one."""
        if self.gang.idle_since is None:
            return self.gang.created_at + limits.prepared_s
        return self.gang.idle_since + limits.keep_warm_s

    def warm_until(self, limits: LifecycleLimits) -> float:
        """Return until when a gang without a job is kept warm, for its owner's next job or for a recovery."""
        return max(self.idle_until(limits), self.held_for_recovery_until)

    def only_uploads_left(self, task: TaskRecord) -> bool:
        """Whether a task's ranks have all ended, so that its agent only uploads their files."""
        states = [rank.state for rank in self.ranks if rank.task_id == task.id]
        return bool(states) and all(state is RankState.EXITED for state in states)

    def is_cleaned_up(self) -> bool:
        """Whether nothing of the job's newest attempt is left on any node."""
        attempt = self.job.attempt_id if self.job else None
        return attempt is not None and all(
            task.state is TaskState.ENDED or task.cleaned_up_attempt_id >= attempt for task in self.tasks
        )

    def starting_since(self, views: Mapping[int, TaskView]) -> float | None:
        """Return since when the start of the job makes no progress; None while a node pulls an image.

        A pull may take any time. Docker itself reports a failed pull.
        """
        if self.job is None or any(view.starting for task in self.tasks if (view := views.get(task.id))):
            return None
        moved_at = self.data.moved_at if self.data else 0.0
        return max(self.job.state_since, moved_at, *(task.state_since for task in self.tasks))


@dataclass(frozen=True)
class ClusterState:
    """What one tick of the control loop knows. It is computed once, for decisions, deadlines and views.

    gang_states: of all gangs, except those for which computing it raised an exception.
    """

    stored: StoredState
    observation: Observation
    gang_states: tuple[GangState, ...]

    @classmethod
    def of(
        cls,
        stored: StoredState,
        observation: Observation,
        limits: LifecycleLimits,
        isolate: Isolate = no_isolation,
    ) -> ClusterState:
        """Compute the state of each gang; `isolate` handles an exception that one gang causes."""
        return cls(stored, observation, tuple(_gang_states(stored, observation, limits, isolate)))


def _gang_states(
    stored: StoredState, observation: Observation, limits: LifecycleLimits, isolate: Isolate
) -> Iterator[GangState]:
    jobs = {job.id: job for job in stored.jobs}
    queued = (job for job in stored.jobs if job.state is JobState.QUEUED)
    held_until = {job.gang_id: job.state_since + limits.recovery_hold_s for job in queued}
    tasks = _grouped(stored.tasks, lambda task: task.gang_id)
    ranks = _grouped(stored.ranks, lambda rank: rank.attempt_id)
    snapshots = _grouped(stored.snapshots, lambda snapshot: snapshot.job_id)
    for gang in stored.gangs:
        job = jobs.get(gang.job_id) if gang.job_id is not None else None
        with isolate("observing", gang):
            unobserved = GangState(
                gang,
                tuple(tasks.get(gang.id, ())),
                job,
                tuple(ranks.get(job.attempt_id, ())) if job else (),
                snapshots=tuple(snapshots.get(job.id, ())) if job else (),
                held_for_recovery_until=held_until.get(gang.id, 0.0),
            )
            yield _observed(unobserved, observation, limits)


def _grouped(items: Iterable[_Item], key: Callable[[_Item], object]) -> Mapping[object, list[_Item]]:
    groups: dict[object, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _observed(state: GangState, observation: Observation, limits: LifecycleLimits) -> GangState:
    """Add to a gang's state what was observed of it."""
    job, gang_id = state.job, state.gang.id
    suspicious = job is not None and lost_connections(job, state.ranks)
    silence_timeout_s = {
        task.id: _silence_timeout_s(task, limits, suspicious=suspicious) for task in state.tasks
    }
    lighthouse = observation.lighthouses.get(gang_id)
    starts = job is not None and job.state in (JobState.STARTING, JobState.REQUEUING)
    return replace(
        state,
        lost=tuple(task for task in state.tasks if _is_lost(task, observation, silence_timeout_s[task.id])),
        silence_timeout_s=silence_timeout_s,
        lighthouse=lighthouse.address if lighthouse is not None else "",
        data=observation.data.get(gang_id),
        unreachable=unreachable_tasks(state.tasks, observation.unreached) if starts else (),
    )


def silent_nodes(
    stored: StoredState, observation: Observation, limits: LifecycleLimits, ending_s: Mapping[int, float]
) -> frozenset[str]:
    """Return the nodes of tasks that were given up because they were silent.

    A Swarm notices a dead node only later. ending_s: for how many seconds gangs have been ending. A task that
    fell silent after that was ended by us, so its node is not suspect. An agent that still starts has longer.
    """
    return frozenset(
        task.node
        for task in stored.tasks
        if task.gang_id in ending_s
        and (view := observation.views.get(task.id)) is not None
        and view.alive
        and observation.silence_s.get(task.id, 0.0) - ending_s[task.gang_id]
        > _silence_timeout_s(task, limits, suspicious=True)
    )


def lost_connections(job: JobRecord, ranks: Iterable[RankRecord]) -> bool:
    """Whether a failing attempt has no known cause but lost connections between its ranks."""
    return job.state is JobState.FAILING and job.error is None and is_consequence(root_cause(ranks))


def _silence_timeout_s(task: TaskRecord, limits: LifecycleLimits, *, suspicious: bool) -> float:
    if task.state is not TaskState.READY:
        return limits.boot_timeout_s
    return limits.suspect_timeout_s if suspicious else limits.heartbeat_timeout_s


def _is_lost(task: TaskRecord, observation: Observation, timeout_s: float) -> bool:
    view = observation.views.get(task.id)
    if task.state is TaskState.ENDED:
        return False
    if task.state is TaskState.NEW:
        return view is not None and not view.alive
    if view is None or not view.alive:
        return True
    return observation.silence_s.get(task.id, 0.0) > timeout_s
