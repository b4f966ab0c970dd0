"""One simulated job: its slots, its speed, and its costs so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from minicluster_hub.scheduling.allocation.free_slots import Places, count_slots, replicas_in
from minicluster_hub.scheduling.base import JobView
from minicluster_hub.simulator.workload import Work


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job that has ended.

    slots: the requested slots.
    alone_s: its duration on these slots in an empty cluster.
    held_s: seconds with slots, restarts included.
    crossed_s: part of held_s on several nodes. needless_s: part of crossed_s on more nodes than necessary.
    longest_wait_s: longest uninterrupted wait.
    """

    job_id: int
    owner: str
    slots: float
    submitted_at: float
    started_at: float
    ended_at: float
    alone_s: float
    held_s: float
    crossed_s: float
    needless_s: float
    slot_s: float
    longest_wait_s: float
    restarts: int
    network_bytes: float

    @property
    def completion_s(self) -> float:
        return self.ended_at - self.submitted_at


@dataclass(slots=True)
class SimulatedJob:
    """A job in a simulation.

    keeps_s: seconds that it keeps slots; inf: to its end.
    node_slots: slots of the largest node.
    left_s: remaining work at `view.since`; inf: unknown, also to policies.
    works_from: time at which it begins to work after its start or restart.
    """

    work: Work
    restart_s: float
    keeps_s: float
    node_slots: int
    view: JobView = field(init=False)
    left_s: float = field(init=False)
    rate: float = 0.0
    works_from: float = 0.0
    ends_at: float = inf
    started_at: float | None = None
    held_s: float = 0.0
    crossed_s: float = 0.0
    needless_s: float = 0.0
    longest_wait_s: float = 0.0
    restarts: int = 0
    network_bytes: float = 0.0

    def __post_init__(self) -> None:
        self.view = self.work.view
        self.left_s = self.work.left_s
        if self.view.runs:
            self.started_at = self.view.since
            self._run_on(self.view.places, works_from(self.view))

    def move(self, places: Places, now: float) -> None:
        """Hold these slots from now on; (): wait."""
        self._settle(now)
        self.rate, self.ends_at = 0.0, inf
        self.view = replace(
            self.view,
            places=places,
            since=now,
            consumed_slot_s=self.view.consumed(now),
            remaining_s=self.left_s / self.work.least_rate if self.left_s < inf else None,
        )
        if not places:
            return
        first = self.started_at is None
        self.started_at = now if first else self.started_at
        self.restarts += not first
        self._run_on(places, now if first else now + self.restart_s)
        self.view = replace(self.view, not_preemptible_until=now + self.keeps_s, rates=self._rates(places))

    def _run_on(self, places: Places, works_from: float) -> None:
        self.rate = self.work.speeds.rate(count_slots(places), len(places))
        self.works_from = works_from
        self.ends_at = works_from + self.left_s / self.rate

    def _rates(self, places: Places) -> tuple[tuple[int, float], ...]:
        """Return the steps per second by replicas; the rate on new slots is known immediately."""
        replicas = replicas_in(places, self.view.slots_per_replica)
        return tuple(sorted({**dict(self.view.rates), replicas: self.rate * self.work.steps_s}.items()))

    def _settle(self, now: float) -> None:
        """Account for the time since its slots last changed."""
        view, passed_s = self.view, now - self.view.since
        if not view.runs:
            self.longest_wait_s = max(self.longest_wait_s, passed_s)
            return
        done_s = self.rate * max(0.0, now - self.works_from)
        self.left_s = max(0.0, self.left_s - done_s)
        self.held_s += passed_s
        if len(view.places) > 1:
            self.crossed_s += passed_s
            self.needless_s += passed_s * (len(view.places) > -(-count_slots(view.places) // self.node_slots))
            self.network_bytes += done_s * self.work.steps_s * _bytes_a_step(view)

    def end(self) -> Outcome:
        """Return the outcome."""
        now, view = self.ends_at, self.view
        self._settle(now)
        return Outcome(
            view.job_id,
            view.owner,
            self.work.asked_slots,
            view.submitted_at,
            now if self.started_at is None else self.started_at,
            now,
            self.work.left_s,
            self.held_s,
            self.crossed_s,
            self.needless_s,
            view.consumed(now),
            self.longest_wait_s,
            self.restarts,
            self.network_bytes,
        )


def works_from(view: JobView) -> float:
    """Return when a job that got its slots at `view.since` began to work on them."""
    return view.since + (view.restart_cost_s if view.consumed_slot_s else 0.0)


def _bytes_a_step(view: JobView) -> float:
    """Return the bytes between nodes in a step.

    A ring through k ranks has one link between nodes for each node; a link carries 2 (k - 1) / k of the
    gradient.
    """
    ranks = count_slots(view.places)
    return len(view.places) * 2 * (ranks - 1) / ranks * view.gradient_bytes
