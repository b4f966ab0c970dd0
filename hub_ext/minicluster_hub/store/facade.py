"""The store as the rest of the service knows it: one transaction per method, records in and out."""

from __future__ import annotations

from typing import Self

from sqlalchemy import select

from minicluster_hub.store.database import Database, open_database
from minicluster_hub.store.jobs.artifacts import ArtifactQueries
from minicluster_hub.store.jobs.environments import EnvironmentQueries
from minicluster_hub.store.jobs.gangs import GangQueries
from minicluster_hub.store.jobs.history import HistoryQueries
from minicluster_hub.store.jobs.jobs import JobQueries
from minicluster_hub.store.jobs.models import ModelQueries
from minicluster_hub.store.jobs.old_jobs import OldJobQueries
from minicluster_hub.store.jobs.open_state import OpenStateQueries
from minicluster_hub.store.jobs.reports import ReportQueries
from minicluster_hub.store.jobs.runs import RunQueries
from minicluster_hub.store.jobs.session_cells import SessionCellQueries
from minicluster_hub.store.jobs.snapshots import SnapshotQueries
from minicluster_hub.store.jobs.sweeps import SweepQueries
from minicluster_hub.store.leadership import LeadershipQueries
from minicluster_hub.store.schema import upgrade
from minicluster_hub.store.storage.blobs import BlobQueries
from minicluster_hub.store.storage.compile_caches import CompileCacheQueries
from minicluster_hub.store.storage.datasets import DataSetQueries
from minicluster_hub.store.storage.images import ImageQueries
from minicluster_hub.store.storage.storage import StorageQueries
from minicluster_hub.store.users.notices import NoticeQueries
from minicluster_hub.store.users.owners import AllowanceQueries, OwnerQueries, UsageQueries
from minicluster_hub.store.users.policies import PolicyQueries
from minicluster_hub.store.users.reservations import ReservationQueries
from minicluster_hub.store.users.servers import IdleServerQueries, ServerQueries


class Store(LeadershipQueries, JobQueries, GangQueries, ReportQueries, OpenStateQueries, ServerQueries):
    """All state that must outlive the service. Every method may raise StoreUnavailable.

    Calls take about a millisecond and block; times are seconds since the epoch. What the loop that acts needs
    is here; the other parts (`store.history`, `store.images`, ...) are attributes.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.runs = RunQueries(database)
        self.history = HistoryQueries(database)
        self.snapshots = SnapshotQueries(database)
        self.artifacts = ArtifactQueries(database)
        self.datasets = DataSetQueries(database)
        self.images = ImageQueries(database)
        self.environments = EnvironmentQueries(database)
        self.blobs = BlobQueries(database)
        self.compile_caches = CompileCacheQueries(database)
        self.old_jobs = OldJobQueries(database)
        self.storage = StorageQueries(database)
        self.policies = PolicyQueries(database)
        self.owners = OwnerQueries(database)
        self.allowances = AllowanceQueries(database)
        self.reservations = ReservationQueries(database)
        self.usage = UsageQueries(database)
        self.idle = IdleServerQueries(database)
        self.notices = NoticeQueries(database)
        self.sweeps = SweepQueries(database)
        self.session_cells = SessionCellQueries(database)
        self.models = ModelQueries(database)

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
