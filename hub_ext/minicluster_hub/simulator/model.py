"""The simulator's assumptions about jobs and machines. Results are shown with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Model:
    """The assumptions that are numbers.

    restart_s: seconds without work after each change of a job's slots; no work is lost.
    min_run_s: seconds that a job keeps its slots before it may be moved.
    exponent: k slots are k^exponent times as fast as one.
    cross_node_efficiency: speed of a job on several nodes, as a share of its speed on one.
    least_share: fewest slots of an elastic job, as a share of the requested slots; at least one slot.
    most_times: most slots of an elastic job, as a multiple of the requested slots.
    adapts: whether jobs with a measured profile adapt their batch size to the slots from an elastic policy.
    half_life_s: time after which an owner's usage counts half.
    """

    restart_s: float = 30.0
    min_run_s: float = 0.0
    exponent: float = 0.95
    cross_node_efficiency: float = 0.75
    least_share: float = 0.25
    most_times: float = 2.0
    adapts: bool = True
    half_life_s: float = 7 * DAY_S

    def stated(self) -> Iterator[str]:
        """Yield the assumptions in words."""
        yield f"a change of slots costs {self.restart_s:g} s and no work; the first start costs nothing"
        if self.min_run_s:
            yield f"a job that got slots keeps them for {self.min_run_s:g} s"
        yield f"k slots are k^{self.exponent:g} times as fast as one, where there is no measured profile"
        yield f"a job on several nodes has {self.cross_node_efficiency:g} of the speed of one on one node"
        yield "a traced duration is that on the slots asked for, on as few nodes as they fit on"
        yield (
            "every job can be preempted; under elastic policies it has from "
            f"{self.least_share:g} (at least one) to {self.most_times:g} times the slots asked for, under "
            "the others exactly those"
        )
        if self.adapts:
            yield "where profiles tell how, jobs adapt their batch size, under elastic policies only"
        yield "policies know the remaining time of each job exactly; time limits end no job"
        yield f"usage counts half after {self.half_life_s / DAY_S:g} days; all owners weigh the same"


class Speeds(Protocol):
    """The speeds of a job: 1 is the speed at which its duration was measured.

    most_slots: the most slots that it can use; None: unknown.
    """

    @property
    def most_slots(self) -> int | None: ...

    def rate(self, slots: float, nodes: int) -> float: ...


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """slots^exponent, less on several nodes. slots, nodes: those of the measured duration."""

    slots: float
    nodes: int
    exponent: float
    cross_node_efficiency: float
    most_slots: None = None

    def rate(self, slots: float, nodes: int) -> float:
        gained = (slots / self.slots) ** self.exponent
        if (nodes > 1) == (self.nodes > 1):
            return gained
        return gained * self.cross_node_efficiency if nodes > 1 else gained / self.cross_node_efficiency


def power_law(slots: float, nodes: int, model: Model) -> PowerLaw:
    return PowerLaw(slots, nodes, model.exponent, model.cross_node_efficiency)
