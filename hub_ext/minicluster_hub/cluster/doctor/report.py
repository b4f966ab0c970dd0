"""What a probe is asked and what it reports: one JSON line each."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

PROBE_PORT = 5103
REPORT_PREFIX = "MINICLUSTER-REPORT "


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Peer(_Record):
    """A node that runs the probe."""

    id: str
    name: str
    address: str


class Door(_Record):
    """A TCP port or URL that has to answer; what: its name in findings, group: of those that do."""

    what: str
    target: str
    group: str = ""

    @property
    def host(self) -> str:
        return self._place.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> str:
        return self._place.rpartition(":")[2]

    @property
    def _place(self) -> str:
        return self.target.partition("//")[2].partition("/")[0]


class Task(_Record):
    """What every probe of one examination is told. token: only probes of the same one are served.

    closed: what users' containers must not reach; the probe on the overlay network stands for one.
    """

    token: str
    port: int
    peers: tuple[Peer, ...]
    doors: tuple[Door, ...] = ()
    closed: tuple[Door, ...] = ()
    shm_bytes: int = 0
    overlay_name: str = ""


class Answer(_Record):
    """Whether a door answered, in words for people if not.

    set_aside: of the job service: how much work fails again and again and was given up.
    """

    door: Door
    ok: bool
    words: str = ""
    set_aside: int = 0


class Link(_Record):
    """The way to a peer: interface, its nominal speed, what was measured, the peer's clock."""

    peer: str
    interface: str = ""
    speed_mbit: int | None = None
    wireless: bool = False
    sent_mbit: float | None = None
    received_mbit: float | None = None
    clock_ahead_s: float | None = None
    error: str = ""

    @property
    def measured_mbit(self) -> float | None:
        """The slower direction."""
        both = [rate for rate in (self.sent_mbit, self.received_mbit) if rate is not None]
        return min(both) if both else None


class Gpus(_Record):
    """GPUs as this node's driver knows them, as containers see them, and the container toolkit's version."""

    of_driver: int = 0
    in_container: int = 0
    toolkit: str = ""


class Report(_Record):
    """All that one node's probe found."""

    node_id: str
    links: tuple[Link, ...] = ()
    answers: tuple[Answer, ...] = ()
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0
    shm_bytes: int = 0
    gpus: Gpus = Gpus()


class OverlayReport(_Record):
    """Which peers' containers a container of this node reached over the overlay network.

    open: by their names, the doors that it reached and must not.
    """

    node_id: str
    reached: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    error: str = ""
