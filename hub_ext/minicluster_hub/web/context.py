"""What every handler gets: the service's parts, and the limits on requests and answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jupyterhub.services.auth import HubOAuth

from minicluster_hub.control.quarantine import Quarantine
from minicluster_hub.control.reconciler import Reconciler
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.datasets.manager import DataSetFiles
from minicluster_hub.datasets.node_tracker import DataSetTracker
from minicluster_hub.images.catalogue import Catalogue
from minicluster_hub.images.publishing import Publications
from minicluster_hub.machines.machines import Machines
from minicluster_hub.machines.run_readings import RunReadings
from minicluster_hub.metrics import Metrics
from minicluster_hub.notices.sender import NoticeSender
from minicluster_hub.policy.active_policy import PolicyManager
from minicluster_hub.policy.simulations import WhatIfWorker
from minicluster_hub.runs.recorder import Recorder
from minicluster_hub.scheduling.admission import AdmissionLimits
from minicluster_hub.scheduling.idle import IdleLimits
from minicluster_hub.servers.placement import ServerPlaces
from minicluster_hub.serving.parts import Serving
from minicluster_hub.sessions.manager import SessionManager
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.storage.compile_caches import CompileCaches
from minicluster_hub.storage.logs import JobLogs
from minicluster_hub.storage.quotas import Storage
from minicluster_hub.store import Store
from minicluster_hub.support.rates import Buckets, Rate
from minicluster_hub.sweeps.manager import SweepManager
from minicluster_hub.usage.accounting import UsageAccounting
from minicluster_hub.usage.reservations import ReservationBook
from minicluster_hub.web.open_streams import HeldPolls, OpenStreams

KIB = 1024


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Sizes in bytes, times in seconds.

    request_bytes: of a user's JSON body. report_bytes: of an agent's JSON body, and of lists. payload_bytes,
        result_bytes, snapshot_bytes, piece_bytes: of uploads.
    artifacts_keep_days: days from a job's end until its files are deleted; 0: never. jobs_keep_days: the
        same for its cell, result, snapshots and output.
    lag_bytes: a stream's reader that is further behind skips to the last `tail_bytes`.
    displays_bytes: of a rank's displays in one read; no single display is larger.
    push_interval_s: least time between two pieces of log text to a reader.
    user_rate: requests of one user with all tokens. A page makes some dozens, a cell some hundreds.
    report_rate: reports and polls of one task; its agent makes at most 20 in a second.
    transfer_rate: blobs and files of one task. refusal_s: pause before a request over the rate is refused;
        less than the heartbeat timeout of tasks.
    answer_bytes, body_bytes: this much of a JSON answer or body counts as one request: handling 8 MB takes as
        long as hundreds of requests. report_unit_bytes: the same for a task's reports, which may contain
        errors of many ranks.
    streams, streams_bytes: event streams that a user may have open, and bytes that may wait on them.
    polls: held polls of one task. stalled_s: how long a reader may take for one event.
    recheck_s: how often the service asks the hub whether a stream's token is still valid.
    uploads: files that a user, or a task, may send at once; notebooks and agents send about four.
    idle_s: how long a connection may wait for its next request, or for its first one including TLS. Longer
        than agents leave a connection idle. body_stalled_s: how long a request's body may pause.
    connections: open connections of each address to the agents' port. All tasks of a node may share one.
    """

    request_bytes: int = KIB * KIB
    report_bytes: int = 8 * KIB * KIB
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
    user_rate: Rate = Rate(per_s=200.0, burst=1000.0)  # noqa: RUF009 - frozen
    report_rate: Rate = Rate(per_s=50.0, burst=250.0)  # noqa: RUF009 - frozen
    transfer_rate: Rate = Rate(per_s=300.0, burst=2000.0)  # noqa: RUF009 - frozen
    refusal_s: float = 0.5
    answer_bytes: int = 32 * KIB
    body_bytes: int = 16 * KIB
    report_unit_bytes: int = 32 * KIB
    streams: int = 256
    streams_bytes: int = 32 * KIB * KIB
    polls: int = 16
    stalled_s: float = 60.0
    recheck_s: float = 15.0
    uploads: int = 64
    idle_s: float = 75.0
    body_stalled_s: float = 60.0
    connections: int = 2048


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of the service that handlers use.

    status_cache: the reconciler's last observation. job_environment: default variables of every job and
        notebook server: pip's index.
    """

    store: Store
    reconciler: Reconciler
    status_cache: StatusCache
    accounting: UsageAccounting
    reservations: ReservationBook
    policy_manager: PolicyManager
    quarantine: Quarantine
    data_set_tracker: DataSetTracker
    server_places: ServerPlaces
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
    compile_caches: CompileCaches
    what_if: WhatIfWorker
    notice_sender: NoticeSender
    machines: Machines
    run_readings: RunReadings
    recorder: Recorder
    sweeps: SweepManager
    sessions: SessionManager
    serving: Serving
    admission: AdmissionLimits = AdmissionLimits()  # noqa: RUF009 - frozen
    idle_limits: IdleLimits = IdleLimits()  # noqa: RUF009 - frozen
    held_polls: HeldPolls = field(default_factory=HeldPolls)
    buckets: Buckets = field(default_factory=Buckets)
    streams: OpenStreams = field(default_factory=OpenStreams)
    job_environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """The service's path under the hub, with slashes at both ends."""
        return self.hub_auth.base_url
