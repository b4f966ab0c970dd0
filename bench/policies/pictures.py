"""Draws the same dozen jobs on 3 nodes with 4 slots each under each policy, for docs/scheduling.md.

The simulator schedules them, with the placement `locality`; pictures of placements use FIFO. Colours are
owners, numbers are jobs; where a bar ends and starts again, the job was restarted. Strokes at the top are
arrivals. Prints each picture's figures. Needs only the standard library.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from minicluster_hub.scheduling.allocation.free_slots import Places
from minicluster_hub.scheduling.base import JobView, Policy
from minicluster_hub.scheduling.placement import PLACEMENTS, placement
from minicluster_hub.scheduling.policies import POLICIES, policy
from minicluster_hub.scheduling.policies.time_slice import TimeSlice
from minicluster_hub.simulator.compare import Setting
from minicluster_hub.simulator.model import PowerLaw
from minicluster_hub.simulator.replay import SimulatedScheduler, Simulation
from minicluster_hub.simulator.workload import Shape, TracedJob, workload

LAB = Setting(Shape(3, 4))
HOUR_S = 3600.0
HOURS = 12
"""Length of the time axis, the same in all pictures."""
COLOURS = {
    "ada": ("#1f5f99", "#2d7bbf", "#4a95d6", "#74b0e3"),
    "bob": ("#a34d0c", "#c96a1f", "#e08a45", "#eeaa74"),
    "eve": ("#2a6e3c", "#3c8c51", "#5aa86e", "#86c496"),
}
HOUR_PX, SLOT_PX, NODE_GAP_PX, LEFT_PX, TOP_PX, BOTTOM_PX = 56, 11, 5, 52, 10, 22

ASKED = (
    # owner, submission in minutes, run time in hours on its slots, slots, time limit in hours, priority
    ("ada", 0, 6.0, 4, 8, 50),
    ("ada", 2, 2.5, 2, 4, 50),
    ("ada", 4, 3.0, 4, 6, 50),
    ("ada", 6, 2.0, 2, 3, 50),
    ("bob", 20, 2.0, 8, 4, 50),
    ("bob", 25, 1.0, 2, 1.5, 50),
    ("eve", 30, 0.5, 1, 1, 50),
    ("ada", 45, 4.0, 2, 8, 50),
    ("eve", 60, 1.5, 4, 3, 80),
    ("bob", 75, 0.3, 1, 0.5, 50),
    ("eve", 90, 2.5, 4, 4, 50),
    ("eve", 150, 0.7, 2, 1, 50),
)
SCALES_BADLY = 1
"""This job is hardly faster on more slots; all others are k^0.95 times as fast on k slots."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time span of a job on one node, without a change of slots."""

    job_id: int
    places: Places
    began_at: float
    ended_at: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    folder = parser.parse_args().folder
    for name in POLICIES:
        placed = "round_robin" if name == "round_robin" else "locality"
        draw(folder / f"scheduling-{name}.svg", to_be_seen(policy(name)), placed)
    for name in PLACEMENTS:
        draw(folder / f"placement-{name}.svg", policy("fifo"), name)


def dozen() -> list[TracedJob]:
    return [
        TracedJob(
            job_id=number,
            owner=owner,
            submitted_at=minutes * 60.0,
            duration_s=hours * HOUR_S,
            slots=slots,
            time_limit_s=limit_h * HOUR_S,
            priority=priority,
            speeds=PowerLaw(slots, 1, 0.3, 0.75) if number == SCALES_BADLY else None,
        )
        for number, (owner, minutes, hours, slots, limit_h, priority) in enumerate(ASKED, start=1)
    ]


def to_be_seen(chosen: Policy) -> Policy:
    """Return the policy with quanta large enough to be visible."""
    return replace(chosen, quantum_s=HOUR_S / 2) if isinstance(chosen, TimeSlice) else chosen


def draw(path: Path, chosen: Policy, placed: str) -> None:
    stretches = list(replay(chosen, placed))
    path.write_text("\n".join(picture(stretches)) + "\n")
    ends = {one.job_id: max(s.ended_at for s in stretches if s.job_id == one.job_id) for one in stretches}
    jobs = dozen()
    average_h = fmean(ends[job.job_id] - job.submitted_at for job in jobs) / HOUR_S
    restarts = len({(one.job_id, one.began_at) for one in stretches}) - len(jobs)
    last_h = max(ends.values()) / HOUR_S
    print(f"{path.name}: average {average_h:.2f} h, all done after {last_h:.2f} h, {restarts} restarts")


def replay(chosen: Policy, placed: str) -> Iterator[Stretch]:
    """Yield the jobs' stretches, each from one change of their slots to the next."""
    scheduler = SimulatedScheduler(LAB.topology(), chosen, placement(placed), LAB.model)
    offered = workload(dozen(), LAB.shape, LAB.model, elastic=chosen.elastic)
    simulation, had = Simulation(scheduler, offered), dict[int, JobView]()
    while simulation.advance() is not None:
        has = {job.job_id: job for job in simulation.snapshot().running}
        for job_id, before in had.items():
            if job_id not in has or has[job_id].since != before.since:
                yield Stretch(job_id, before.places, before.since, simulation.now)
        had = has


def picture(stretches: list[Stretch]) -> Iterator[str]:
    rows = {
        (node, slot): row_px(index, slot)
        for index, node in enumerate(LAB.shape.by_node())
        for slot in range(4)
    }
    bottom = max(rows.values()) + SLOT_PX
    width, height = LEFT_PX + HOURS * HOUR_PX + 12, bottom + BOTTOM_PX
    size = f'width="{width}" height="{height}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    yield f'<rect {size} fill="white"/>'
    yield from axes(rows, bottom)
    for stretch in stretches:
        yield from bars(stretch, rows)
    yield "</svg>"


def row_px(node: int, slot: int) -> int:
    return TOP_PX + node * (4 * SLOT_PX + NODE_GAP_PX) + slot * SLOT_PX


def x_px(seconds: float) -> float:
    return LEFT_PX + seconds / HOUR_S * HOUR_PX


def axes(rows: dict[tuple[str, int], int], bottom: int) -> Iterator[str]:
    for hour in range(0, HOURS + 1, 2):
        x = x_px(hour * HOUR_S)
        yield f'<path d="M{x:g} {TOP_PX}V{bottom}" stroke="#ccc"/>'
        yield f'<text x="{x:g}" y="{bottom + 14}" font-size="10" text-anchor="middle">{hour} h</text>'
    for (node, slot), y in rows.items():
        yield f'<rect x="{LEFT_PX}" y="{y}" width="{HOURS * HOUR_PX}" height="{SLOT_PX - 1}" fill="#f4f4f4"/>'
        if slot == 0:
            yield f'<text x="4" y="{y + 2 * SLOT_PX + 3}" font-size="10">node {node[-1]}</text>'
    for number, job in enumerate(dozen(), start=1):
        line = f'stroke="{colour(number)}" stroke-width="2"'
        yield f'<path d="M{x_px(job.submitted_at):.1f} {TOP_PX - 5}v4" {line}/>'


def bars(stretch: Stretch, rows: dict[tuple[str, int], int]) -> Iterator[str]:
    x, end = x_px(stretch.began_at) + 0.5, x_px(stretch.ended_at)
    width = max(0.8, end - x)
    for node, slots in stretch.places:
        for top, count in runs(sorted(rows[node, slot] for slot in slots)):
            box = f'x="{x:.1f}" y="{top}" width="{width:.1f}" height="{count * SLOT_PX - 1}"'
            yield f'<rect {box} fill="{colour(stretch.job_id)}"/>'
            if width > 12:
                place = f'x="{x + width / 2:.1f}" y="{top + count * SLOT_PX / 2 + 3:g}"'
                yield f'<text {place} font-size="9" fill="white" text-anchor="middle">{stretch.job_id}</text>'


def runs(tops: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first slot and the length of each run of adjacent slots."""
    first, count = tops[0], 1
    for top in tops[1:]:
        if top == first + count * SLOT_PX:
            count += 1
        else:
            yield first, count
            first, count = top, 1
    yield first, count


def colour(job_id: int) -> str:
    owner = ASKED[job_id - 1][0]
    same = [number for number, asked in enumerate(ASKED, start=1) if asked[0] == owner]
    return COLOURS[owner][same.index(job_id) % len(COLOURS[owner])]


if __name__ == "__main__":
    main()
