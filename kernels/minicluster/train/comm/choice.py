"""Which way to communicate is chosen for what was measured, and what it is expected to take. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from minicluster.wire.comm import DDP, CommMethod

NEAR_COMPUTE = 1.15
"""A way is good enough if its step takes at most this many times what the step computes."""
LEAST_GAIN = 0.9
"""Another way than plain DDP has to take at most this part of its time."""
_AVERAGING_SHARE = 0.1
"""How much of the computing time may go into averaging weights: it decides how often that is done."""
_LOCAL_STEPS = (4, 32)
_DILOCO_STEPS = (50, 500)


@dataclass(frozen=True)
class Measured:
    """Seconds of a step, on the slowest rank. compute: without communication. plain: with DDP as it is.

    exact, bf16, powersgd: averaging the gradients alone. weights: averaging the weights alone.
    """

    compute: float
    plain: float
    exact: float
    bf16: float
    powersgd: float | None
    weights: float

    @property
    def exposed(self) -> float:
        """Which part of the communication of plain DDP its backward pass does not hide."""
        return min(1.0, max(0.0, self.plain - self.compute) / self.exact) if self.exact else 0.0


@dataclass(frozen=True)
class Expected:
    """A way to communicate, and how long a step with it is expected to take, in seconds."""

    method: CommMethod
    step_s: float


def expectations(measured: Measured, start: int) -> Iterator[Expected]:
    """Yield what each way is expected to take, those first that are nearest to plain DDP.

    start: the first step that would be made so.
    """
    compute = measured.compute
    yield Expected(CommMethod(DDP), measured.plain)
    yield Expected(CommMethod("bf16"), compute + measured.exposed * measured.bf16)
    if measured.powersgd is not None:
        yield Expected(CommMethod("powersgd", {"start": start}), compute + measured.powersgd)
    for name, (least, most) in (("localsgd", _LOCAL_STEPS), ("diloco", _DILOCO_STEPS)):
        needed = math.ceil(measured.weights / (_AVERAGING_SHARE * compute)) if compute else most
        period = min(max(needed, least), most)
        method = CommMethod(name, {"period": period, "start": start})
        yield Expected(method, compute + measured.weights / period)


def sentence(measured: Measured, chosen: Expected, size: int, slowest_gbit_s: float | None) -> str:
    """Return what was measured, what was chosen for it, and what is expected. size: of gradients in bytes."""
    link = f", slowest link {slowest_gbit_s:.2g} Gbit/s" if slowest_gbit_s else ""
    found = (
        f"A step computes for {_ms(measured.compute)} and takes {_ms(measured.plain)} in plain DDP "
        f"({size / 1e6:.3g} MB of gradients{link})."
    )
    if chosen.method.name == DDP:
        return f"{found} Plain DDP it stays: nothing else would be much faster."
    expected = f"Chosen for about {_ms(chosen.step_s)} a step"
    return f"{found} {expected}: --comm {chosen.method}, which also repeats this run."


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def choose(measured: Measured, start: int) -> Expected:
    """Return the first way that is good enough; if none is, the fastest."""
    ways = list(expectations(measured, start))
    plain, *others = ways
    near = NEAR_COMPUTE * measured.compute
    best = next((way for way in ways if way.step_s <= near), min(ways, key=lambda way: way.step_s))
    return best if best in others and best.step_s <= LEAST_GAIN * plain.step_s else plain
