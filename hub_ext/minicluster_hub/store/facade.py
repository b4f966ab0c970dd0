"""The store as the rest of the service knows it: one transaction per method, records in and out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from minicluster.wire import JobError, JobSubmit, TaskReport
from minicluster_hub.jobs.records import EventRecord, JobRecord, ServerRecord, TaskRecord, World
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.store.database import Database, open_database
from minicluster_hub.store.errors import SlotTaken
from minicluster_hub.store.jobs import gangs, jobs, reports
from minicluster_hub.store.jobs.artifacts import Artifacts
from minicluster_hub.store.jobs.environments import Environments
from minicluster_hub.store.jobs.history import History
from minicluster_hub.store.jobs.old_jobs import OldJobs
from minicluster_hub.store.jobs.snapshots import Snapshots
from minicluster_hub.store.jobs.world import WorldReader
from minicluster_hub.store.leadership import Competing
from minicluster_hub.store.schema import upgrade
from minicluster_hub.store.storage.blobs import OwnedBlobs
from minicluster_hub.store.storage.datasets import DataSets
from minicluster_hub.store.storage.images import Images
from minicluster_hub.store.storage.storage import StorageRows
from minicluster_hub.store.users import servers
from minicluster_hub.store.users.notices import Notices
from minicluster_hub.store.users.owners import AllowanceRows, Owners, UsageRows
from minicluster_hub.store.users.policies import Policies
from minicluster_hub.store.users.reservations import Claims
from minicluster_hub.store.users.servers import IdleServers


class Store(Competing):
    """All state that must outlive the service. Every method may raise StoreUnavailable.

    Calls take about a millisecond and block; times are seconds since the epoch.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._world = WorldReader()
        self.history = History(database)
        self.snapshots = Snapshots(database)
        self.artifacts = Artifacts(database)
        self.datasets = DataSets(database)
        self.images = Images(database)
        self.environments = Environments(database)
        self.blobs = OwnedBlobs(database)
        self.old_jobs = OldJobs(database)
        self.storage = StorageRows(database)
        self.policies = Policies(database)
        self.owners = Owners(database)
        self.allowances = AllowanceRows(database)
        self.claims = Claims(database)
        self.usage = UsageRows(database)
        self.idle = IdleServers(database)
        self.notices = Notices(database)

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a database, created or migrated as needed. Raises StoreBroken."""
        database = open_database(url)
        try:
            upgrade(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        self._database.close()

    def ping(self) -> None:
        """Raise StoreUnavailable if the database does not answer."""
        with self._database.read() as connection:
            connection.execute(select(1))

    # --- jobs -----------------------------------------------------------------------------------

    def submit(self, owner: str, request: JobSubmit, now: float) -> tuple[JobRecord, bool]:
        """Return the job of the owner's key, and whether this call made it."""
        known = self.job_of_key(owner, request.idempotency_key)
        if known is not None:
            return known, False
        try:
            with self._database.write() as connection:
                return jobs.submit(connection, owner, request, now), True
        except IntegrityError:
            known = self.job_of_key(owner, request.idempotency_key)
            if known is None:
                raise
            return known, False

    def job_of_key(self, owner: str, key: str) -> JobRecord | None:
        """Return the job that the owner submitted with this idempotency key."""
        with self._database.read() as connection:
            return jobs.find_by_key(connection, owner, key)

    def count_open_jobs(self, owner: str) -> int:
        """Return how many of the owner's jobs wait or run."""
        with self._database.read() as connection:
            return jobs.count_open(connection, owner)

    def job(self, job_id: int) -> JobRecord | None:
        with self._database.read() as connection:
            return jobs.find(connection, job_id)

    def jobs(
        self, owner: str | None, *, open_only: bool = False, limit: int = 100, before: int | None = None
    ) -> list[JobRecord]:
        """Return jobs, the newest first. `owner` None: everyone's. before: those with a smaller id."""
        with self._database.read() as connection:
            return jobs.list_jobs(connection, owner, open_only, limit, before)

    def jobs_by_id(self, job_ids: Collection[int]) -> list[JobRecord]:
        with self._database.read() as connection:
            return jobs.list_by_id(connection, job_ids)

    def events(self, job_id: int, after: int = 0, most: int = 1000) -> list[EventRecord]:
        """Return the first lines of a job's story behind the event `after`, in order."""
        with self._database.read() as connection:
            return jobs.list_events(connection, job_id, after, most)

    def last_event_id(self, job_id: int) -> int:
        """Return the id of the job's newest event, 0 if there is none."""
        with self._database.read() as connection:
            return jobs.last_event_id(connection, job_id)

    def apply(
        self,
        job_id: int,
        event: JobEvent,
        now: float,
        *,
        reason: str = "",
        error: JobError | None = None,
        text: str = "",
        losses: int | None = None,
    ) -> JobRecord:
        """Take a job over one transition of the table in `states`; return it as it is then.

        The attempt's first error is kept, and rank 0's result when the ranks succeeded. A job that
        is over, or queued again, leaves its gang warm. Raises TransitionImpossible, JobUnknown.
        """
        with self._database.write() as connection:
            job = jobs.find_known(connection, job_id, lock=True)
            values = {} if losses is None else {"losses": losses}
            jobs.step(connection, job, event, now, reason=reason, error=error, text=text, values=values)
            return jobs.find_known(connection, job_id)

    def note(self, job_id: int, kind: str, text: str, now: float) -> None:
        """Write a line of the job's story that changes no state."""
        with self._database.write() as connection:
            jobs.find_known(connection, job_id)
            jobs.add_event(connection, job_id, kind, text, now)

    # --- what the reconciler decides from and on --------------------------------------------------

    def world(self) -> World:
        """Return all open jobs, the gangs with a living task, their tasks, ranks and all leases."""
        with self._database.read() as connection:
            return self._world.read(connection)

    def attempt_nodes(self, attempt_id: int) -> tuple[str, ...]:
        """Return the nodes that an attempt ran on, in the order of its tasks."""
        with self._database.read() as connection:
            return gangs.attempt_nodes(connection, attempt_id)

    def admit(self, job_id: int, places: Sequence[tuple[str, tuple[int, ...]]], now: float) -> int:
        """Lease the slots of a new gang, one task per place, and start an attempt; return its id.

        Raises SlotTaken, with nothing changed, when a slot is held.
        """
        with self._leasing(f"job {job_id} cannot be admitted", places) as connection:
            return gangs.admit(connection, job_id, places, now)

    @contextmanager
    def _leasing(self, failing: str, places: gangs.Places) -> Iterator[Connection]:
        """A write that takes slots. Raises SlotTaken, with nothing changed, when one is held."""
        try:
            with self._database.write() as connection:
                yield connection
        except IntegrityError as error:
            with self._database.read() as connection:
                taken = gangs.held(connection, places)
            raise SlotTaken(failing, taken) from error

    def bind(self, job_id: int, gang_id: int, now: float, more: gangs.Places = ()) -> None:
        """Start an attempt on a warm gang of the job's owner, with tasks in further places.

        Raises GangTaken, and SlotTaken, with nothing changed, when a slot is held.
        """
        with self._leasing(f"job {job_id} cannot be bound to gang {gang_id}", more) as connection:
            gangs.bind(connection, job_id, gang_id, now, more)

    def grow(self, job_id: int, places: gangs.Places, now: float) -> None:
        """Add tasks to a running attempt. Raises GangTaken and SlotTaken, with nothing changed."""
        with self._leasing(f"job {job_id} cannot grow", places) as connection:
            gangs.grow(connection, job_id, places, now)

    def drop_tasks(self, gang_id: int, task_ids: Sequence[int], now: float) -> int:
        """Move lost tasks to a gang of their own, which is to end; return its id."""
        with self._database.write() as connection:
            return gangs.drop_tasks(connection, gang_id, task_ids, now)

    def end_gang(self, gang_id: int) -> None:
        """Want the gang's tasks gone."""
        with self._database.write() as connection:
            gangs.end_gang(connection, gang_id)

    # --- tasks ------------------------------------------------------------------------------------

    def arm_task(self, task_id: int, token_hash: str) -> None:
        """Keep the hash of the task's newest token; an older token is worth nothing then."""
        with self._database.write() as connection:
            gangs.arm_task(connection, task_id, token_hash)

    def task_started(self, task_id: int, now: float) -> None:
        """Keep that the engine was told. A task that is further stays so."""
        with self._database.write() as connection:
            gangs.task_started(connection, task_id, now)

    def task_ended(self, task_id: int, now: float) -> None:
        """Keep that nothing of the task is left, and free its slots."""
        with self._database.write() as connection:
            gangs.task_ended(connection, task_id, now)

    def task_by_token(self, token_hash: str) -> TaskRecord | None:
        """Return the task with this token's hash, unless it has ended."""
        with self._database.read() as connection:
            return gangs.task_by_token(connection, token_hash)

    def report(self, task: TaskRecord, report: TaskReport, now: float) -> bool:
        """Keep what goes forward in an agent's report; return whether anything did.

        Notes go into the job's story once each. Chunks are the logs' business.
        """
        with self._database.read() as connection:
            changes = reports.plan(connection, task, report)
        if changes is None or changes.empty:
            return False
        with self._database.write() as connection:
            changes = reports.plan(connection, reports.locked(connection, task.id), report)
            if changes is None or changes.empty:
                return False
            reports.carry_out(connection, task.id, changes, now)
        return True

    # --- notebook servers -------------------------------------------------------------------------

    def place_server(
        self,
        owner: str,
        name: str,
        place: tuple[str, tuple[int, ...]],
        *,
        until: float | None,
        shared_home: bool,
        now: float,
        given_up_home: str | None = None,
    ) -> ServerRecord:
        """Keep a server's place and take its slots; the first one is also where its home stays.

        given_up_home: the node of a home that an empty one takes the place of.
        Raises SlotTaken (a slot is held, or the server has a place already) and HomeMoved, with
        nothing changed.
        """
        try:
            with self._database.write() as connection:
                if not shared_home:
                    servers.claim_home(connection, owner, place[0], given_up_home)
                return servers.add(connection, owner, name, place, until, now)
        except IntegrityError as error:
            with self._database.read() as connection:
                taken = gangs.held(connection, [place])
            raise SlotTaken(f"server {name!r} of {owner} cannot be placed", taken) from error

    def end_server(self, server_id: int) -> bool:
        """Free a server's place and its slots; return whether it was there."""
        with self._database.write() as connection:
            return servers.end(connection, server_id)

    def server(self, owner: str, name: str) -> ServerRecord | None:
        with self._database.read() as connection:
            return servers.find(connection, owner, name)

    def homes(self) -> dict[str, str]:
        """Return the node of each user's home."""
        with self._database.read() as connection:
            return servers.homes(connection)

    def home_of(self, owner: str) -> str | None:
        """Return the node that a user's home is on, None if it has none yet."""
        with self._database.read() as connection:
            return servers.home_of(connection, owner)
