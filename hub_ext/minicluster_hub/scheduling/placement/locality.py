"""Fewest nodes, then most ranks of the same job on the node, then best fit: gradients that stay on a node
load no network.

A gang may wait for fewer nodes. On n nodes, a step takes the time to compute plus the time of a ring
all-reduce between the nodes, 2 (n-1)/n x gradient bytes / link speed (Patarasuk and Yuan, 2009). A gang waits
at most `patience` times as long as the worse places would delay it in total, and at most `most_wait_s`. With
patience 1, that is the break-even rule of the ski rental problem (Karlin et al., 1988). The default is
larger, since a gang on one node instead of two also leaves the other node whole for later jobs. Waiting for
better places is delay scheduling (Zaharia et al., 2010); moving running gangs together is from Gandiva (Xiao
et al., 2018).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from minicluster_hub.scheduling.allocation.filling import best_fit, fill
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, count_slots, replicas_in
from minicluster_hub.scheduling.base import JobView, Topology


@dataclass(frozen=True)
class Locality:
    """most_wait_s: the longest wait of a gang for fewer nodes.
    patience: the longest wait as a multiple of the delay that more nodes would cause.
    least_gain: the least saving of a move as a multiple of the cost of the restart.
    cross_node_efficiency: speed on several nodes as a share of that on one, if gradients or rates are
        unknown.
    exponent: k replicas on one node are k^exponent times as fast as one.
    limit_share: share of its time limit that a job is expected to run.
    unknown_run_s: expected run time of a job without other data.
    """

    most_wait_s: float = 86_400.0
    patience: float = 2.0
    least_gain: float = 2.0
    cross_node_efficiency: float = 0.75
    exponent: float = 0.95
    limit_share: float = 1 / 3
    unknown_run_s: float = 1800.0

    def place(self, job: JobView, replicas: int, free: FreeSlots, topology: Topology) -> Places | None:
        if job.one_replica_per_node:
            return best_fit(job, replicas, free)
        if free.replicas_that_fit(job.slots_per_replica, one_replica_per_node=False) < replicas:
            return None
        places = fill(job, replicas, free, _fewest(job, replicas, free))
        return None if places is None or self._slows_down(job, replicas, places, topology) else places

    def max_delay_s(self, job: JobView, places: Places, topology: Topology) -> float:
        if job.one_replica_per_node or len(places) == 1:
            return 0.0
        fewest = fewest_nodes(job, count_slots(places), topology)
        run_s = self._run_s(job, replicas_in(places, job.slots_per_replica), job.since)
        return min(self.most_wait_s, self.patience * self._lost_s(job, len(places), fewest, run_s, topology))

    def better_places(
        self, job: JobView, places: Places, free: FreeSlots, topology: Topology, now: float
    ) -> Places | None:
        if job.one_replica_per_node or len(places) == 1:
            return None
        replicas = replicas_in(places, job.slots_per_replica)
        found = self.place(replace(job, places=()), replicas, free, topology)
        if found is None or len(found) >= len(places):
            return None
        run_s = self._run_s(job, replicas, now)
        won_s = self._lost_s(job, len(places), len(found), run_s, topology)
        restarts_anyway = set(places) != set(job.places)
        return found if restarts_anyway or won_s > self.least_gain * job.restart_cost_s else None

    def _slows_down(self, job: JobView, replicas: int, more: Places, topology: Topology) -> bool:
        """Whether the job would be slower with these replicas, because it would be on more nodes."""
        before, after = len(job.places), len(dict(job.places) | dict(more))
        if not before:
            return False
        gained = ((job.replicas + replicas) / job.replicas) ** self.exponent
        return gained * self._efficiency(job, after, topology) <= self._efficiency(job, before, topology)

    def _lost_s(self, job: JobView, nodes: int, fewer: int, run_s: float, topology: Topology) -> float:
        """Return how much longer a job runs on `nodes` nodes if it takes `run_s` on `fewer`."""
        return run_s * (self._efficiency(job, fewer, topology) / self._efficiency(job, nodes, topology) - 1)

    def _efficiency(self, job: JobView, nodes: int, topology: Topology) -> float:
        """Return the share of a step that is computation."""
        if nodes == 1:
            return 1.0
        if not job.gradient_bytes or not job.rates:
            return self.cross_node_efficiency
        compute_s = 1 / max(rate for _, rate in job.rates)
        network_s = 2 * (nodes - 1) / nodes * job.gradient_bytes / topology.link_bytes_s
        return compute_s / (compute_s + network_s)

    def _run_s(self, job: JobView, replicas: int, now: float) -> float:
        """Return how long a job will run: by its progress, its time limit, or as long as it has run."""
        if job.remaining_s is not None:
            return job.remaining_s * job.min_replicas / replicas
        if job.time_limit_s is not None and not job.runs:
            return job.time_limit_s * self.limit_share
        return max(self.unknown_run_s, job.consumed(now) / (replicas * job.slots_per_replica))


def fewest_nodes(job: JobView, slots: float, topology: Topology) -> int:
    """Return how many nodes that many slots need in an empty cluster."""
    missing = slots // job.slots_per_replica
    for count, room in enumerate(sorted(topology.slots.values(), reverse=True), start=1):
        missing -= room // job.slots_per_replica
        if missing <= 0:
            return count
    return len(topology.slots)


def _fewest(job: JobView, replicas: int, free: FreeSlots) -> Iterator[str]:
    """Yield the nodes to fill: those with ranks of the job, then the emptiest, last the best fit."""
    missing, seen = replicas, set[str]()
    for node, _ in sorted(job.places, key=lambda place: (-len(place[1]), place[0])):
        seen.add(node)
        missing -= free.room(node, job.slots_per_replica)
        yield node
    while True:
        fitting = _first(free.nodes(missing * job.slots_per_replica), seen)
        node = fitting or _first(free.roomy_nodes(job.slots_per_replica), seen)
        if node is None:
            return
        seen.add(node)
        missing -= free.room(node, job.slots_per_replica)
        yield node


def _first(nodes: Iterator[str], seen: set[str]) -> str | None:
    return next((node for node in nodes if node not in seen), None)
