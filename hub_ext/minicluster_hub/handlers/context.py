"""What every handler is given: the service's parts, and the limits of what comes and goes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jupyterhub.services.auth import HubOAuth

from minicluster_hub.blobs import BlobFiles
from minicluster_hub.board import Board
from minicluster_hub.catalogue.catalogue import Catalogue
from minicluster_hub.catalogue.publishing import Publications
from minicluster_hub.data_sets import DataSetFiles
from minicluster_hub.handlers.metrics import Metrics
from minicluster_hub.holds import Holds
from minicluster_hub.logs import JobLogs
from minicluster_hub.notices.post import Post
from minicluster_hub.reconciler import Reconciler
from minicluster_hub.scheduling.admission import AdmissionLimits
from minicluster_hub.scheduling.idle import IdleLimits
from minicluster_hub.scheduling.servers import ServerLimits
from minicluster_hub.server_places import Turns
from minicluster_hub.shadowing import Shadowing
from minicluster_hub.storage import Storage
from minicluster_hub.store import Store

KIB = 1024


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Sizes in bytes and times in seconds.

    request_bytes: of a JSON body. payload_bytes, result_bytes: of blobs up and down.
    lag_bytes: how far a reader may fall behind in a stream before it is moved forward, to the last
        `tail_bytes`. artifacts_keep_days: how long files of a job are kept after its end, 0: for ever.
        jobs_keep_days: the same of its cell, its result, its snapshots and its output.
        displays_bytes: of what a rank displayed are read and sent at once; more than a single item has.
    push_interval_s: least time between two pushes of log text to a reader.
    """

    request_bytes: int = 8 * KIB * KIB
    payload_bytes: int = 2 * KIB * KIB * KIB
    result_bytes: int = 16 * KIB * KIB * KIB
    snapshot_bytes: int = 64 * KIB * KIB * KIB
    artifacts_keep_days: float = 0.0
    jobs_keep_days: float = 0.0
    piece_bytes: int = 256 * KIB * KIB
    lag_bytes: int = 256 * KIB
    tail_bytes: int = 64 * KIB
    displays_bytes: int = 4 * KIB * KIB
    push_interval_s: float = 0.05
    keep_alive_s: float = 15.0
    orders_hold_s: float = 25.0


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of the service. `prefix` is its path under the hub, with slashes at both ends."""

    store: Store
    reconciler: Reconciler
    logs: JobLogs
    blobs: BlobFiles
    hub_auth: HubOAuth
    metrics: Metrics
    limits: ApiLimits
    clock: Callable[[], float]
    log: logging.Logger
    catalogue: Catalogue
    publications: Publications
    data_sets: DataSetFiles
    storage: Storage
    shadowing: Shadowing
    post: Post
    admission: AdmissionLimits = AdmissionLimits()  # noqa: RUF009 - frozen
    server_limits: ServerLimits = ServerLimits()  # noqa: RUF009 - frozen
    idle_limits: IdleLimits = IdleLimits()  # noqa: RUF009 - frozen
    holds: Holds = field(default_factory=Holds)
    server_turns: Turns = field(default_factory=Turns)
    job_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of every job and notebook server, unless they have their own: pip's index."""

    @property
    def board(self) -> Board:
        """What the reconciler last saw."""
        return self.reconciler.board

    @property
    def prefix(self) -> str:
        return self.hub_auth.base_url
