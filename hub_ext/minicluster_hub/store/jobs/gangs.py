"""Gangs, their tasks and leases: all slots of an attempt, together or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, and_, bindparam, delete, false, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from minicluster.wire import JobState, RankState
from minicluster_hub.jobs.records import GangTarget, JobRecord, TaskRecord, TaskState
from minicluster_hub.jobs.slot_numbers import in_halves, slot_of
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.errors import GangTaken, SlotTaken
from minicluster_hub.store.jobs import jobs
from minicluster_hub.store.rows import add_row, lease_rows, slots_to_json, to_gang, to_task
from minicluster_hub.store.tables.main import ATTEMPTS, GANGS, JOBS, LEASES, RANKS, TASKS

Places = Sequence[tuple[str, tuple[int, ...]]]

LIVE_STATES = tuple(state.value for state in TaskState if state is not TaskState.ENDED)
_LIVE_WITH_TOKEN = select(TASKS).where(
    TASKS.c.token_hash == bindparam("token_hash"), TASKS.c.state != TaskState.ENDED
)
"""Runs at each request of each agent: built once."""


class GangQueries(DatabasePart):
    """Gangs, tasks and leases. Part of the store."""

    def admit(self, job_id: int, places: Places, now: float) -> int:
        """Lease the slots of a new gang, one task per place, and start an attempt; return its id.

        Raises SlotTaken, with nothing changed, when a slot is held.
        """
        with self._leasing(f"job {job_id} cannot be admitted", places) as connection:
            return _admit(connection, job_id, places, now)

    def prepare(self, owner: str, image: str | None, places: Places, now: float) -> int:
        """Lease the slots of a new gang without a job, one task per place; return its id.

        It is warm from the beginning. Raises SlotTaken, with nothing changed, when a slot is held.
        """
        with self._leasing(f"no gang can be prepared for {owner}", places) as connection:
            gang = {
                "owner": owner,
                "target": GangTarget.KEEP,
                "job_id": None,
                "slots_per_node": 1,
                "created_at": now,
                "image": image,
                "shm_bytes": None,
            }
            gang_id = add_row(connection, GANGS, gang)
            _add_tasks(connection, owner, None, gang_id, places, now)
            return gang_id

    @contextmanager
    def _leasing(self, failing: str, places: Places) -> Iterator[Connection]:
        """A write that takes slots. Raises SlotTaken, with nothing changed, when one is held."""
        try:
            with self._database.write() as connection:
                yield connection
        except IntegrityError as error:
            with self._database.read() as connection:
                taken = held(connection, places)
            raise SlotTaken(failing, taken) from error

    def bind(self, job_id: int, gang_id: int, now: float, more: Places = ()) -> None:
        """Start an attempt on a warm gang of the job's owner, with additional tasks in `more` places.

        Raises GangTaken, and SlotTaken, with nothing changed, when a slot is held.
        """
        with self._leasing(f"job {job_id} cannot be bound to gang {gang_id}", more) as connection:
            _bind(connection, job_id, gang_id, now, more)

    def grow(self, job_id: int, places: Places, now: float) -> None:
        """Add tasks to a running attempt. Raises GangTaken and SlotTaken, with nothing changed."""
        with self._leasing(f"job {job_id} cannot grow", places) as connection:
            _grow(connection, job_id, places, now)

    def drop_tasks(self, gang_id: int, task_ids: Sequence[int], now: float) -> int:
        """Move lost tasks to a new gang, which then ends; return its id."""
        with self._database.write() as connection:
            return _drop_tasks(connection, gang_id, task_ids, now)

    def end_gang(self, gang_id: int) -> None:
        """Set the gang's target to END."""
        with self._database.write() as connection:
            connection.execute(update(GANGS).where(GANGS.c.id == gang_id).values(target=GangTarget.END))

    def end_prepared(self, owner: str) -> None:
        """Set the target of an owner's gangs that have had no job yet to END."""
        unused = (GANGS.c.job_id.is_(None), GANGS.c.idle_since.is_(None), GANGS.c.target == GangTarget.KEEP)
        with self._database.write() as connection:
            own = update(GANGS).where(GANGS.c.owner == owner, *unused)
            connection.execute(own.values(target=GangTarget.END))

    def attempt_nodes(self, attempt_id: int) -> tuple[str, ...]:
        """Return the nodes that an attempt ran on, in the order of its ranks, including lost nodes."""
        query = select(TASKS.c.node).join(RANKS, RANKS.c.task_id == TASKS.c.id)
        of_attempt = query.where(RANKS.c.attempt_id == attempt_id).order_by(RANKS.c.rank)
        with self._database.read() as connection:
            return tuple(dict.fromkeys(connection.execute(of_attempt).scalars()))

    def set_task_token(self, task_id: int, token_hash: str) -> None:
        """Store the hash of the task's newest token; older tokens become invalid."""
        task = update(TASKS).where(TASKS.c.id == task_id, TASKS.c.state != TaskState.ENDED)
        with self._database.write() as connection:
            connection.execute(task.values(token_hash=token_hash))

    def task_started(self, task_id: int, now: float) -> None:
        """Record that the engine started the task. A task in a later state keeps that state."""
        task = update(TASKS).where(TASKS.c.id == task_id, TASKS.c.state == TaskState.NEW)
        with self._database.write() as connection:
            connection.execute(task.values(state=TaskState.STARTED, state_since=now))

    def task_ended(self, task_id: int, now: float) -> None:
        """Record that nothing of the task is left, and free its slots."""
        task = update(TASKS).where(TASKS.c.id == task_id, TASKS.c.state != TaskState.ENDED)
        with self._database.write() as connection:
            connection.execute(task.values(state=TaskState.ENDED, state_since=now))
            connection.execute(delete(LEASES).where(LEASES.c.task_id == task_id))

    def task_by_token(self, token_hash: str) -> TaskRecord | None:
        """Return the task whose token has this hash, unless the task has ended. "" matches no task."""
        if not token_hash:
            return None
        with self._database.read() as connection:
            row = connection.execute(_LIVE_WITH_TOKEN, {"token_hash": token_hash}).one_or_none()
        return None if row is None else to_task(row)


def _admit(connection: Connection, job_id: int, places: Places, now: float) -> int:
    """Give a queued job a new gang. Raises IntegrityError when a slot is held already."""
    if not any(slots for _, slots in places):
        raise ValueError(f"job {job_id} cannot be admitted to no slots at all")
    job = jobs.find_known(connection, job_id, lock=True)
    gang = {
        "owner": job.owner,
        "target": GangTarget.KEEP,
        "job_id": job.id,
        "slots_per_node": job.spec.slots_per_node,
        "created_at": now,
        "image": job.spec.image,
        "shm_bytes": job.spec.shm_bytes,
    }
    gang_id = add_row(connection, GANGS, gang)
    _add_tasks(connection, job.owner, job.id, gang_id, places, now)
    _begin_attempt(connection, job, gang_id, now)
    return gang_id


def _bind(connection: Connection, job_id: int, gang_id: int, now: float, more: Places = ()) -> None:
    """Give a queued job a warm gang of its owner, with `more` tasks if it has too few.

    Raises GangTaken, and IntegrityError when a slot of `more` is held already.
    """
    job = jobs.find_known(connection, job_id, lock=True)
    tasks = tasks_of(connection, gang_id)
    why = _refusal(connection, job, gang_id, tasks)
    if why:
        raise GangTaken(job_id, gang_id, why)
    connection.execute(update(GANGS).where(GANGS.c.id == gang_id).values(job_id=job_id, idle_since=None))
    leases = update(LEASES).where(LEASES.c.task_id.in_([task.id for task in tasks]))
    connection.execute(leases.values(job_id=job_id, warm=False))
    _add_tasks(connection, job.owner, job.id, gang_id, more, now)
    _begin_attempt(connection, job, gang_id, now)


def _grow(connection: Connection, job_id: int, places: Places, now: float) -> None:
    """Add tasks to the attempt that a fault-tolerant job is running: they join it live.

    Raises GangTaken when it is over by now, and IntegrityError when a slot is held already.
    """
    job = jobs.find_known(connection, job_id, lock=True)
    if job.state is not JobState.RUNNING or job.gang_id is None or job.attempt_id is None:
        raise GangTaken(job_id, job.gang_id or 0, f"the job is {job.state}")
    task_ids = _add_tasks(connection, job.owner, job.id, job.gang_id, places, now)
    of_ranks = [task_id for task_id in task_ids for _ in range(job.spec.ranks_on_each_node)]
    highest = select(func.max(RANKS.c.rank)).where(RANKS.c.attempt_id == job.attempt_id)
    first = connection.execute(highest).scalar_one() + 1
    _add_ranks(connection, job.attempt_id, of_ranks, first, joined=True)
    _count_ranks(connection, job.gang_id)
    nodes = ", ".join(node for node, _ in places)
    jobs.add_event(connection, job_id, "grown", f"attempt {job.attempts} also on {nodes}", now)


def _drop_tasks(connection: Connection, gang_id: int, task_ids: Sequence[int], now: float) -> int:
    """Move tasks that are lost to a gang of their own, which is to end; return its id.

    The others stay together, with what they keep in memory.
    """
    gang = connection.execute(select(GANGS).where(GANGS.c.id == gang_id).with_for_update()).one()
    values = {**gang._mapping, "target": GangTarget.END, "job_id": None, "idle_since": now}
    del values["id"]
    left = add_row(connection, GANGS, values)
    connection.execute(update(TASKS).where(TASKS.c.id.in_(task_ids)).values(gang_id=left))
    leases = update(LEASES).where(LEASES.c.task_id.in_(task_ids))
    connection.execute(leases.values(job_id=None, warm=True))
    _count_ranks(connection, gang_id)
    return left


def _count_ranks(connection: Connection, gang_id: int) -> None:
    """Update how many ranks a running job has."""
    living = (
        select(func.count())
        .select_from(RANKS.join(TASKS, RANKS.c.task_id == TASKS.c.id))
        .where(RANKS.c.attempt_id == JOBS.c.attempt_id, TASKS.c.gang_id == gang_id)
        .scalar_subquery()
    )
    running = update(JOBS).where(JOBS.c.gang_id == gang_id, JOBS.c.state == JobState.RUNNING)
    connection.execute(running.values(world_size=living))


def tasks_of(connection: Connection, gang_id: int) -> list[TaskRecord]:
    query = select(TASKS).where(TASKS.c.gang_id == gang_id).order_by(TASKS.c.index)
    return [to_task(row) for row in connection.execute(query)]


def held(connection: Connection, places: Places) -> list[str]:
    """Return messages on which of these slots are held, and by what."""
    wanted = [
        and_(LEASES.c.node == node, LEASES.c.slot == half)
        for node, slots in places
        for half in in_halves(slots)
    ]
    query = select(LEASES).where(or_(false(), *wanted)).order_by(LEASES.c.node, LEASES.c.slot)
    held_by = (
        f"slot {slot_of(row.slot)} of {row.node} is held by {_holder(row.task_id)} of {row.owner}"
        for row in connection.execute(query)
    )
    return list(dict.fromkeys(held_by))


def _holder(task_id: int | None) -> str:
    return "a notebook server" if task_id is None else f"task {task_id}"


def _refusal(connection: Connection, job: JobRecord, gang_id: int, tasks: list[TaskRecord]) -> str:
    """Return why the gang cannot take the job, or nothing. Locks the gang's row."""
    row = connection.execute(select(GANGS).where(GANGS.c.id == gang_id).with_for_update()).one_or_none()
    if row is None:
        return "there is no such gang"
    gang = to_gang(row)
    if gang.owner != job.owner:
        return "it is another owner's"
    if gang.job_id is not None:
        return f"it is bound to job {gang.job_id}"
    if gang.target is not GangTarget.KEEP:
        return "it is being ended"
    if (gang.image, gang.shm_bytes) != (job.spec.image, job.spec.shm_bytes):
        return "its tasks were started in another image or with another /dev/shm"
    ended = [str(task.id) for task in tasks if task.state is TaskState.ENDED]
    return f"its task {ended[0]} has ended" if ended else ""


def _add_task(
    connection: Connection, gang_id: int, index: int, place: tuple[str, tuple[int, ...]], now: float
) -> int:
    node, slots = place
    values = {
        "gang_id": gang_id,
        "index": index,
        "node": node,
        "slots": slots_to_json(slots),
        "state": TaskState.NEW,
        "token_hash": "",
        "address": "",
        "cleared": 0,
        "state_since": now,
    }
    return add_row(connection, TASKS, values)


def _add_tasks(
    connection: Connection, owner: str, job_id: int | None, gang_id: int, places: Places, now: float
) -> list[int]:
    """Add a task for each place, behind those that the gang has, with its leases; return their ids."""
    first = connection.execute(select(func.max(TASKS.c.index)).where(TASKS.c.gang_id == gang_id)).scalar()
    start = 0 if first is None else first + 1
    added = [_add_task(connection, gang_id, index, place, now) for index, place in enumerate(places, start)]
    if added:
        _lease(connection, owner, job_id, places, added)
    return added


def _lease(
    connection: Connection, owner: str, job_id: int | None, places: Places, task_ids: list[int]
) -> None:
    rows = [
        row
        for task_id, (node, slots) in zip(task_ids, places, strict=True)
        for row in lease_rows(node, slots, task_id=task_id, job_id=job_id, owner=owner, warm=job_id is None)
    ]
    # In one order everywhere: two admissions that want the same slots then cannot deadlock.
    rows.sort(key=lambda row: (row["node"], row["slot"]))
    connection.execute(insert(LEASES), rows)


def _begin_attempt(connection: Connection, job: JobRecord, gang_id: int, now: float) -> None:
    """Write the attempt with its ranks, task by task; the job becomes STARTING."""
    tasks = tasks_of(connection, gang_id)
    number = job.attempts + 1
    attempt = {"job_id": job.id, "gang_id": gang_id, "number": number, "created_at": now}
    attempt_id = add_row(connection, ATTEMPTS, attempt)
    ranks = [task.id for task in tasks for _ in range(job.spec.ranks_on(len(task.slots)))]
    _add_ranks(connection, attempt_id, ranks, 0)
    values = {"attempts": number, "attempt_id": attempt_id, "gang_id": gang_id, "world_size": len(ranks)}
    text = f"attempt {number} on {', '.join(task.node for task in tasks)}"
    jobs.apply_transition(connection, job, JobEvent.ADMITTED, now, text=text, values=values)


def _add_ranks(
    connection: Connection, attempt_id: int, task_ids: list[int], first: int, *, joined: bool = False
) -> None:
    """Write one rank for each element of `task_ids`, which is the rank's task; numbered from `first` on."""
    ranks = [
        {
            "attempt_id": attempt_id,
            "rank": rank,
            "task_id": task_id,
            "state": RankState.PENDING,
            "joined": joined,
        }
        for rank, task_id in enumerate(task_ids, first)
    ]
    connection.execute(insert(RANKS), ranks)
