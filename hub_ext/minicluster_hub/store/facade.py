"""The store as the rest of the service knows it: one transaction per method, records in and out."""

from __future__ import annotations

from typing import Self

from sqlalchemy import select

from minicluster_hub.store.database import Database, open_database
from minicluster_hub.store.jobs.artifacts import Artifacts
from minicluster_hub.store.jobs.environments import Environments
from minicluster_hub.store.jobs.gangs import GangQueries
from minicluster_hub.store.jobs.history import JobHistory
from minicluster_hub.store.jobs.jobs import JobQueries
from minicluster_hub.store.jobs.old_jobs import OldJobs
from minicluster_hub.store.jobs.reports import ReportQueries
from minicluster_hub.store.jobs.snapshots import Snapshots
from minicluster_hub.store.jobs.world import WorldQueries
from minicluster_hub.store.leadership import Competing
from minicluster_hub.store.schema import upgrade
from minicluster_hub.store.storage.blobs import OwnedBlobs
from minicluster_hub.store.storage.datasets import DataSets
from minicluster_hub.store.storage.images import ImageRows
from minicluster_hub.store.storage.storage import StorageRows
from minicluster_hub.store.users.notices import Notices
from minicluster_hub.store.users.owners import AllowanceRows, Owners, UsageRows
from minicluster_hub.store.users.policies import Policies
from minicluster_hub.store.users.reservations import ReservationQueries
from minicluster_hub.store.users.servers import IdleServers, ServerQueries


class Store(Competing, JobQueries, GangQueries, ReportQueries, WorldQueries, ServerQueries):
    """All state that must outlive the service. Every method may raise StoreUnavailable.

    Calls take about a millisecond and block; times are seconds since the epoch. What the loop that acts needs
    is here; the other parts (`store.history`, `store.images`, ...) are attributes.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.history = JobHistory(database)
        self.snapshots = Snapshots(database)
        self.artifacts = Artifacts(database)
        self.datasets = DataSets(database)
        self.images = ImageRows(database)
        self.environments = Environments(database)
        self.blobs = OwnedBlobs(database)
        self.old_jobs = OldJobs(database)
        self.storage = StorageRows(database)
        self.policies = Policies(database)
        self.owners = Owners(database)
        self.allowances = AllowanceRows(database)
        self.reservations = ReservationQueries(database)
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
