"""The messages to and from probes: one JSON line each."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from minicluster_hub.cluster.doctor.checks.gpu_copies import GpuCopies
from minicluster_hub.cluster.doctor.checks.node import NodeState

PROBE_PORT = 5103
REPORT_PREFIX = "MINICLUSTER-REPORT "


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class Peer(_Message):
    """A node that runs the probe."""

    id: str
    name: str
    address: str


class Target(_Message):
    """A TCP port or URL that a probe tries.

    what: its name in findings. group: one name for all targets of its kind, if all answer.
    """

    what: str
    target: str
    group: str = ""

    @property
    def host(self) -> str:
        return self._host_and_port.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> str:
        return self._host_and_port.rpartition(":")[2]

    @property
    def _host_and_port(self) -> str:
        return self.target.partition("//")[2].partition("/")[0]


class ProbeTask(_Message):
    """The request to every probe of one run of doctor.

    token: probes answer only probes of the same run. targets: must answer.
    closed: users' containers must not reach these; the probe on the overlay network stands for one.
    collector: the node whose probes print the reports of the others, too. For some minutes after a node lost
        its power, Docker's manager gets no logs from it (moby/moby#35011).
    """

    token: str
    port: int
    peers: tuple[Peer, ...]
    targets: tuple[Target, ...] = ()
    closed: tuple[Target, ...] = ()
    overlay_name: str = ""
    collector: str = ""


class TargetAnswer(_Message):
    """Whether a target answered. words: why it did not, for people.

    set_aside: of the job service: the number of steps that it gave up after repeated failures.
    """

    target: Target
    ok: bool
    words: str = ""
    set_aside: int = 0


class PeerLink(_Message):
    """The link to a peer: interface, its nominal speed, the rates of a single TCP flow, the peer's clock.

    address: this node's own on the way there. half_duplex: the interface sends or receives, not both at once.
    """

    peer: str
    interface: str = ""
    address: str = ""
    speed_mbit: int | None = None
    half_duplex: bool = False
    wireless: bool = False
    sent_mbit: float | None = None
    received_mbit: float | None = None
    clock_ahead_s: float | None = None
    error: str = ""

    @property
    def measured_mbit(self) -> float | None:
        """The rate of the slower direction."""
        return min((rate for rate in (self.sent_mbit, self.received_mbit) if rate is not None), default=None)


class NodeReport(_Message):
    """The report of one node's probe."""

    node_id: str
    links: tuple[PeerLink, ...] = ()
    answers: tuple[TargetAnswer, ...] = ()
    state: NodeState
    copies: GpuCopies = GpuCopies()


class OverlayReport(_Message):
    """Which peers' containers a container on this node reached over the overlay network.

    open: the names of forbidden targets that it reached. interface: the one that leads to the peers; Gloo and
    NCCL take it in a job's container.
    """

    node_id: str
    reached: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    interface: str = ""
    error: str = ""
