"""The state that decisions are made from: each gang with its tasks, its job and observations. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

from minicluster.wire import JobState, OutputLimits, RankState
from minicluster_hub.jobs.connectivity import Unreached, apart
from minicluster_hub.jobs.records import (
    DataView,
    GangRecord,
    JobRecord,
    LighthouseView,
    RankRecord,
    SnapshotRecord,
    TaskRecord,
    TaskState,
    TaskView,
    World,
)
from minicluster_hub.jobs.root_cause import is_consequence, root_cause

ENDING = (JobState.STOPPING, JobState.FAILING, JobState.REQUEUING, JobState.YIELDING)
"""States in which an attempt is being cleared away."""

Isolate = Callable[[str, GangRecord], AbstractContextManager[object]]
"""(what is done, gang) -> a context that keeps an exception for this gang from all others."""


_Item = TypeVar("_Item")


def together(_doing: str, _gang: GangRecord) -> AbstractContextManager[object]:
    """Isolate nothing: an exception for one gang passes."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class LifecycleLimits:
    """Limits of a job's life cycle; times in seconds.

    stop_patience_s: how long an attempt may take to end; more than the agents' own escalation (5 s).
    stopped_files_patience_s, failed_files_patience_s: the same if all ranks have ended and the agent uploads
        what they wrote. A whole stop must be over within 12 s.
    heartbeat_timeout_s: silence after which a task is lost. Agents report each second.
    boot_timeout_s: the same before an agent's first report: on a busy machine it loads slowly.
    suspect_timeout_s: the same once other ranks have lost their connections.
    quiet_after_s: time without progress of a rank after which the job's owner is told why; 0: never.
    max_losses: attempts in a row that may end with a lost task and no newer snapshot.
    meet_patience_s: how long the tasks of an attempt that needs all of them may fail to reach each other.
    min_run_s: how long a started job keeps its slots, whatever the policy says.
    awaited_s: how long tasks stay warm for a job that lost a node and waits for slots. Meanwhile they upload
        its snapshots.
    retry_s: the pause after an unexpected failure for one job; each further failure doubles it.
    """

    heartbeat_timeout_s: float = 3.0
    suspect_timeout_s: float = 1.5
    boot_timeout_s: float = 15.0
    start_timeout_s: float = 300.0
    pull_timeout_s: float = 3600.0
    stop_patience_s: float = 6.5
    stopped_files_patience_s: float = 9.0
    failed_files_patience_s: float = 60.0
    keep_warm_s: float = 120.0
    max_losses: int = 3
    quiet_after_s: float = 120.0
    meet_patience_s: float = 60.0
    min_run_s: float = 60.0
    awaited_s: float = 600.0
    retry_s: float = 1.0
    output: OutputLimits = OutputLimits()  # noqa: RUF009 - frozen

    def end_patience_s(self, state: JobState, *, brings: bool) -> float:
        """Return how long an attempt may take to end. brings: only files are left to upload."""
        longer = {
            JobState.STOPPING: self.stopped_files_patience_s,
            JobState.FAILING: self.failed_files_patience_s,
            JobState.YIELDING: self.failed_files_patience_s,
        }
        return longer.get(state, self.stop_patience_s) if brings else self.stop_patience_s


@dataclass(frozen=True)
class Observation:
    """What is known beside the store: the engine's views of tasks, and each agent's silence in seconds.

    lighthouses: by gang, of fault-tolerant jobs. data: by gang, how far the data sets of starting jobs are.
    unreached: see connectivity. down: names of nodes that are down.
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

    lost: tasks that have ended, or were silent for longer than their `patience_s` (seconds, by task).
    lighthouse: host:port of the lighthouse, "" as long as there is none.
    data: how far the data sets of a starting job are, None if it has none.
    apart: tasks of a starting attempt that the others do not reach.
    awaited_until: until when a job that lost a node may go on with these tasks, which hold its newest
        snapshots; 0: no job waits for them.
    """

    gang: GangRecord
    tasks: tuple[TaskRecord, ...]
    job: JobRecord | None
    ranks: tuple[RankRecord, ...]
    lost: tuple[TaskRecord, ...] = field(default=())
    patience_s: Mapping[int, float] = field(default_factory=dict[int, float])
    snapshots: tuple[SnapshotRecord, ...] = field(default=())
    lighthouse: str = ""
    data: DataView | None = None
    apart: tuple[TaskRecord, ...] = field(default=())
    awaited_until: float = 0.0

    @property
    def assembled(self) -> bool:
        return all(task.state is TaskState.READY for task in self.tasks)

    @property
    def living_ranks(self) -> tuple[RankRecord, ...]:
        """The ranks of tasks that the gang still has; the others went with a lost node."""
        held = {task.id for task in self.tasks}
        return tuple(rank for rank in self.ranks if rank.task_id in held)

    @property
    def tolerates_loss(self) -> bool:
        """Whether the attempt runs, and goes on as long as it has one task."""
        return self.job is not None and self.job.spec.fault_tolerant and self.job.state is JobState.RUNNING

    def idle_until(self, limits: LifecycleLimits) -> float:
        """Return until when a gang without a job is kept warm for its owner's next one."""
        idle_since = self.gang.created_at if self.gang.idle_since is None else self.gang.idle_since
        return idle_since + limits.keep_warm_s

    def warm_until(self, limits: LifecycleLimits) -> float:
        """Return until when a gang without a job is kept warm, for whichever job."""
        return max(self.idle_until(limits), self.awaited_until)

    def brings(self, task: TaskRecord) -> bool:
        """Whether a task's ranks have ended, so that its agent has only their files left to upload."""
        mine = [rank.state for rank in self.ranks if rank.task_id == task.id]
        return bool(mine) and all(state is RankState.EXITED for state in mine)

    def cleared(self) -> bool:
        """Whether nothing of the job's newest attempt is left on any node."""
        attempt = self.job.attempt_id if self.job else None
        return attempt is not None and all(
            task.state is TaskState.ENDED or task.cleared >= attempt for task in self.tasks
        )

    def starting_since(self, views: Mapping[int, TaskView]) -> float | None:
        """Return since when the job waits without progress; None while a node pulls an image.

        A pull may take any time: Docker itself reports one that failed.
        """
        if self.job is None or any(view.starting for task in self.tasks if (view := views.get(task.id))):
            return None
        moved_at = self.data.moved_at if self.data else 0.0
        return max(self.job.state_since, moved_at, *(task.state_since for task in self.tasks))


@dataclass(frozen=True)
class ClusterState:
    """What one tick of the control loop knows, derived once, for decisions, deadlines and views.

    gang_states: of all gangs, except those for which deriving it raised.
    """

    world: World
    observation: Observation
    gang_states: tuple[GangState, ...]

    @classmethod
    def of(
        cls, world: World, observation: Observation, limits: LifecycleLimits, isolate: Isolate = together
    ) -> ClusterState:
        """Derive the state of each gang; `isolate` handles an exception for one of them."""
        return cls(world, observation, tuple(_gang_states(world, observation, limits, isolate)))


def _gang_states(
    world: World, observation: Observation, limits: LifecycleLimits, isolate: Isolate
) -> Iterator[GangState]:
    jobs = {job.id: job for job in world.jobs}
    queued = (job for job in world.jobs if job.state is JobState.QUEUED)
    awaited = {job.gang_id: job.state_since + limits.awaited_s for job in queued}
    tasks = _grouped(world.tasks, lambda task: task.gang_id)
    ranks = _grouped(world.ranks, lambda rank: rank.attempt_id)
    snapshots = _grouped(world.snapshots, lambda snapshot: snapshot.job_id)
    for gang in world.gangs:
        job = jobs.get(gang.job_id) if gang.job_id is not None else None
        with isolate("observing", gang):
            bare = GangState(
                gang,
                tuple(tasks.get(gang.id, ())),
                job,
                tuple(ranks.get(job.attempt_id, ())) if job else (),
                snapshots=tuple(snapshots.get(job.id, ())) if job else (),
                awaited_until=awaited.get(gang.id, 0.0),
            )
            yield _observed(bare, observation, limits)


def _grouped(items: Iterable[_Item], key: Callable[[_Item], object]) -> Mapping[object, list[_Item]]:
    groups: dict[object, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _observed(state: GangState, observation: Observation, limits: LifecycleLimits) -> GangState:
    """Return the state of a gang with what was observed of it."""
    job, gang_id = state.job, state.gang.id
    suspicious = job is not None and lost_connections(job, state.ranks)
    patience_s = {task.id: _patience_s(task, limits, suspicious=suspicious) for task in state.tasks}
    lighthouse = observation.lighthouses.get(gang_id)
    starts = job is not None and job.state in (JobState.STARTING, JobState.REQUEUING)
    return replace(
        state,
        lost=tuple(task for task in state.tasks if _is_lost(task, observation, patience_s[task.id])),
        patience_s=patience_s,
        lighthouse=lighthouse.address if lighthouse is not None else "",
        data=observation.data.get(gang_id),
        apart=apart(state.tasks, observation.unreached) if starts else (),
    )


def silent_nodes(
    world: World, observation: Observation, limits: LifecycleLimits, ending_s: Mapping[int, float]
) -> frozenset[str]:
    """Return the nodes of tasks that were given up as silent: a Swarm notices a dead node later.

    ending_s: for how long gangs have been ending. An agent that reported until then was ended.
    """
    return frozenset(
        task.node
        for task in world.tasks
        if task.gang_id in ending_s
        and (view := observation.views.get(task.id)) is not None
        and view.alive
        and observation.silence_s.get(task.id, 0.0) - ending_s[task.gang_id] > limits.suspect_timeout_s
    )


def lost_connections(job: JobRecord, ranks: Iterable[RankRecord]) -> bool:
    """Whether lost connections are all that is known of a failing attempt."""
    return job.state is JobState.FAILING and job.error is None and is_consequence(root_cause(ranks))


def _patience_s(task: TaskRecord, limits: LifecycleLimits, *, suspicious: bool) -> float:
    if task.state is not TaskState.READY:
        return limits.boot_timeout_s
    return limits.suspect_timeout_s if suspicious else limits.heartbeat_timeout_s


def _is_lost(task: TaskRecord, observation: Observation, patience_s: float) -> bool:
    view = observation.views.get(task.id)
    if task.state is TaskState.ENDED:
        return False
    if task.state is TaskState.NEW:
        return view is not None and not view.alive
    if view is None or not view.alive:
        return True
    return observation.silence_s.get(task.id, 0.0) > patience_s
