"""From a profile's spans to where the time went. Pure.

On a GPU: what its kernels compute; communication that no computing hides; waiting for data meanwhile; the
rest is idle. On a CPU, the samples are made by the process that trains, so that waiting for data comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

Spans = list[tuple[float, float]]
"""Begin and end, in microseconds."""


class Part(Enum):
    COMPUTE = "computing"
    COMMUNICATION = "communication"
    DATA = "waiting for data"
    IDLE = "idle"


ADVICE = {
    Part.COMPUTE: "Mixed precision (torch.autocast) or torch.compile may make it faster.",
    Part.COMMUNICATION: "Larger batches, or several with model.no_sync() before a step, need less of it.",
    Part.DATA: "Give the DataLoader num_workers=2 or more, or decode and resize the samples once, before.",
    Part.IDLE: "Nothing ran: look in the trace for .item(), print() and other Python between the operations.",
}


@dataclass(frozen=True)
class Times:
    """Microseconds of each part, in a profile of some steps."""

    steps: int
    parts: dict[Part, float]

    def rows(self) -> list[tuple[str, float, float]]:
        """Return name, milliseconds of a step, and share of the time of each part."""
        whole = sum(self.parts.values()) or 1.0
        return [(part.value, us / 1e3 / self.steps, us / whole) for part, us in self.parts.items()]

    def sentence(self) -> str:
        """Return what costs most, and what to try."""
        part = max(self.parts, key=lambda part: self.parts[part])
        share = self.parts[part] / (sum(self.parts.values()) or 1.0)
        return f"Most of the time, {share:.0%}, is {part.value}. {ADVICE[part]}"


def times(spans: dict[Part, Spans], begin: float, end: float, steps: int, *, on_gpu: bool) -> Times:
    """Return the time of each part between two moments. Each moment belongs to the first part that has it."""
    busy = [Part.COMPUTE, Part.COMMUNICATION]
    order = [*busy, Part.DATA] if on_gpu else [Part.DATA, *busy]
    found: dict[Part, float] = {}
    taken: Spans = []
    for part in order:
        own = merged((max(begin, first), min(end, last)) for first, last in spans.get(part, ()))
        before, taken = length(taken), merged([*taken, *own])
        found[part] = length(taken) - before
    found[Part.IDLE] = max(0.0, end - begin - length(taken))
    return Times(max(1, steps), {part: found[part] for part in Part})


def merged(spans: Iterable[tuple[float, float]]) -> Spans:
    """Return spans without overlaps, in order."""
    found: Spans = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def length(spans: Sequence[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in spans)


def part_of(name: str) -> Part:
    """Return what an operation or kernel is for, by its name."""
    if name.startswith("enumerate(DataLoader)"):
        return Part.DATA
    if name.startswith(("gloo:", "nccl:", "nccl", "c10d::", "_c10d_functional::", "record_param_comms")):
        return Part.COMMUNICATION
    return Part.COMPUTE
