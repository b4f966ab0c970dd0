"""How long scheduling takes in a lab and in a large cluster, and how it grows with the number of jobs.

Measures one `assign` (policy, allocation, placement) in CPU time of this process, the best of a few runs, as
the machine may be busy. The same queue is scheduled in four states: all slots are free; no slot is free; one
slot of each node is free, so small jobs fit and gangs do not; and all slots are held by jobs that may be
moved. Prints a table of the growth and one line per target. `--all`: every policy with every placement in the
large cluster, without targets.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parts.targets import Target, close

from minicluster_hub.scheduling.allocation.assign import assign
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import JobView, Snapshot, Topology
from minicluster_hub.scheduling.placement import PLACEMENTS, placement
from minicluster_hub.scheduling.policies import POLICIES, policy

LAB = (3, 4, 200)
LARGE = (1000, 8, 10_000)
"""Number of nodes, slots per node, waiting jobs."""
LAB_BOUND_MS = 50.0
LARGE_BOUND_MS = 1000.0
NOW = 1e6
TIMED = ("fifo", "backfill")
GROWING = (31, 62, 125, 250, 500, 1000)
SIZES, SHARES = (1, 2, 4, 8), (80, 8, 8, 4)
"""Slots of a job, and the percentage of jobs that request so many."""
WHOLE_FROM = 4
"""A job with at least this many slots needs them on one node."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="plans of each kind; the quickest counts")
    parser.add_argument("--all", action="store_true", help="every policy with every placement, no targets")
    parser.add_argument("--plot", type=Path, help="draw how it grows into this file (needs matplotlib)")
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; {given.rounds} rounds")
    if given.all:
        show_all(given.rounds)
        return
    grown = {
        name: [spent_ms(name, "pack", "free", growing(nodes), given.rounds) for nodes in GROWING]
        for name in TIMED
    }
    show_growth(grown)
    if given.plot:
        plot(grown, given.plot)
    close(measured(given.rounds))


def measured(rounds: int) -> Iterator[Target]:
    for name, scene in product(TIMED, SCENES):
        yield Target(f"{name}_lab_{scene}_ms", spent_ms(name, "pack", scene, LAB, rounds), LAB_BOUND_MS)
        yield Target(f"{name}_large_{scene}_ms", spent_ms(name, "pack", scene, LARGE, rounds), LARGE_BOUND_MS)


def spent_ms(order: str, placed: str, scene: str, size: tuple[int, int, int], rounds: int) -> float:
    """Return the CPU time of one plan."""
    snapshot = SCENES[scene](*size)
    ordered, places = policy(order), placement(placed)
    return min(_timed(lambda: assign(snapshot, ordered, places)) for _ in range(rounds))


def _timed(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return 1000 * (time.process_time() - began)


def growing(nodes: int) -> tuple[int, int, int]:
    return nodes, 8, 10 * nodes


def all_free(nodes: int, slots: int, waiting: int) -> Snapshot:
    topology = Topology({f"node-{number:04}": slots for number in range(nodes)})
    free = FreeSlots({node: range(count) for node, count in topology.slots.items()})
    return Snapshot(NOW, queue(waiting, random.Random(1)), free, topology)


def one_each(nodes: int, slots: int, waiting: int) -> Snapshot:
    """Return a snapshot in which jobs that cannot be moved hold all slots but one of each node."""
    return held(all_free(nodes, slots, waiting), slots - 1, not_preemptible_until=inf)


def none_free(nodes: int, slots: int, waiting: int) -> Snapshot:
    return held(all_free(nodes, slots, waiting), slots, not_preemptible_until=inf)


def movable(nodes: int, slots: int, waiting: int) -> Snapshot:
    return held(all_free(nodes, slots, waiting), slots, not_preemptible_until=0.0)


SCENES = {"free": all_free, "none_free": none_free, "one_each": one_each, "movable": movable}


def queue(count: int, chance: random.Random) -> tuple[JobView, ...]:
    """Return waiting jobs, most of them small."""
    return tuple(request(number, chance, submitted_at=NOW - count + number) for number in range(count))


def request(number: int, chance: random.Random, submitted_at: float) -> JobView:
    (slots,) = chance.choices(SIZES, SHARES)
    runs_s, whole = chance.lognormvariate(7.1, 1.9), slots >= WHOLE_FROM
    return JobView(
        number,
        f"user-{chance.randrange(40)}",
        submitted_at,
        min_replicas=1 if whole else slots,
        max_replicas=1 if whole else slots,
        slots_per_replica=slots if whole else 1,
        one_replica_per_node=False,
        since=submitted_at,
        remaining_s=runs_s,
        time_limit_s=runs_s * chance.uniform(1, 5),
    )


def held(snapshot: Snapshot, slots: int, not_preemptible_until: float) -> Snapshot:
    """Add jobs of one slot each that hold so many slots of each node."""
    free, chance = snapshot.free.copy(), random.Random(2)
    running: list[JobView] = []
    for node in free.names:
        for slot in range(slots):
            number = 1_000_000 + len(running)
            job = request(number, chance, submitted_at=chance.uniform(NOW - 86400, NOW - 20_000))
            taken = ((node, (slot,)),)
            free.remove(taken)
            one = replace(
                job,
                min_replicas=1,
                max_replicas=1,
                slots_per_replica=1,
                places=taken,
                not_preemptible_until=not_preemptible_until,
            )
            running.append(replace(one, since=NOW - chance.uniform(0, 0.9) * (one.time_limit_s or 0.0)))
    return replace(snapshot, jobs=(*running, *snapshot.jobs), free=free)


def show_growth(grown: dict[str, list[float]]) -> None:
    print(f"{'nodes x 8':>10} {'waiting':>8} " + " ".join(f"{name:>12}" for name in grown))
    for index, nodes in enumerate(GROWING):
        row = " ".join(f"{times[index]:9.1f} ms" for times in grown.values())
        print(f"{nodes:>10} {growing(nodes)[2]:>8} {row}")


def show_all(rounds: int) -> None:
    for scene, order in product(SCENES, POLICIES):
        row = (f"{name} {spent_ms(order, name, scene, LARGE, rounds):.0f}" for name in PLACEMENTS)
        print(f"{scene:>10} {order:>14}  " + "  ".join(row) + "  ms", flush=True)


def plot(grown: dict[str, list[float]], path: Path) -> None:
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(6, 4))).subplots()
    for name, times in grown.items():
        axes.loglog([growing(nodes)[2] for nodes in GROWING], times, "o-", label=name)
    axes.set_xlabel("waiting jobs, ten for each node of 8 slots")
    axes.set_ylabel("plan and places, ms of processor time")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
