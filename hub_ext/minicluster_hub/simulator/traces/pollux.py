"""Pollux's workloads (Qiao et al., OSDI 2021): 160 jobs in 8 h, made for 16 nodes with 4 GPUs each.

A trace's folder is beside profiles/, which has the speeds of jobs on any number of GPUs. placements.csv has
the seconds of a step on up to 16 GPUs, by the GPUs on each node ("112": three nodes); scalability.csv has
those on more GPUs. `sync_time` is the part of a step that waits for gradients. validation-B.csv has the steps
by the end of each epoch with batch size B: it shows how much more slowly a training converges with larger
batches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from csv import DictReader
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf
from pathlib import Path
from statistics import fmean

from minicluster_hub.simulator.traces.models import gradient_bytes
from minicluster_hub.simulator.workload import TracedJob

Points = Sequence[tuple[float, float]]
Times = Mapping[tuple[bool, int], float]
"""Seconds of a training, by (whether on several nodes, number of GPUs), from one GPU on."""
MOST_GPUS = 64
_GPUS_PER_NODE = 4
_MOST_LOCAL = {"yolov3": 8}
_ON_ONE_GPU = ("ncf",)
"""Applications that never use more, as in the authors' simulation."""


def read(trace: Path) -> list[TracedJob]:
    """Read the jobs; all have one owner."""
    rows = _rows(trace)
    names = sorted({row["application"] for row in rows})
    profiles = {
        name: _profile(trace.parent / ".." / "profiles" / name, _MOST_LOCAL.get(name)) for name in names
    }
    adapted = {name: _adapted(name, profile) for name, profile in profiles.items()}
    return [
        _job(number, row, profiles[row["application"]], adapted[row["application"]])
        for number, row in enumerate(rows)
    ]


def _job(number: int, row: dict[str, str], profile: Profile, adapted: Times) -> TracedJob:
    name, gpus, batch = row["application"], int(row["num_replicas"]), int(row["batch_size"])
    crosses = gpus > _GPUS_PER_NODE
    duration_s = profile.train_s(batch, gpus, crosses=crosses)
    most = 1 if name in _ON_ONE_GPU else profile.most_gpus(batch)
    fixed = _by_gpus(most, lambda count, crosses: profile.train_s(batch, count, crosses=crosses))
    return TracedJob(
        job_id=number,
        owner="",
        submitted_at=float(row["time"]),
        duration_s=duration_s,
        slots=gpus,
        step_s=profile.step_s(batch, gpus, crosses=crosses),
        gradient_bytes=gradient_bytes(name),
        speeds=Measured(fixed, duration_s, most),
        elastic_speeds=Measured(adapted, duration_s, max(count for _, count in adapted)),
    )


def _adapted(name: str, profile: Profile) -> Times:
    most = 1 if name in _ON_ONE_GPU else profile.most_gpus(max(profile.steps))
    return _by_gpus(most, lambda count, crosses: profile.best_train_s(count, crosses=crosses))


def _by_gpus(most: int, train_s: Callable[[int, bool], float]) -> Times:
    return {
        (crosses, count): train_s(count, crosses) for crosses in (False, True) for count in range(1, most + 1)
    }


@dataclass(frozen=True)
class Profile:
    """The measured profile of one application.

    steps: to the end of training, by batch size.
    computes: (batch size of a GPU, seconds) of a step without the exchange of gradients.
    exchanges: the same of the exchange alone, by (whether on several nodes, number of GPUs).
    most_local: the largest batch that fits on a GPU.
    """

    steps: Mapping[int, int]
    computes: Points
    exchanges: Mapping[tuple[bool, int], Points]
    most_local: int

    @cached_property
    def least_local(self) -> int:
        return int(self.computes[0][0])

    def most_gpus(self, batch: int) -> int:
        return max(1, min(MOST_GPUS, batch // self.least_local))

    def step_s(self, batch: int, gpus: int, *, crosses: bool) -> float:
        """Return the seconds of a step. A batch that does not fit on the GPUs is computed in parts."""
        local = ceil(batch / gpus)
        turns = ceil(local / self.most_local)
        local = ceil(local / turns)
        return turns * _between(self.computes, local) + self._exchange_s(local, gpus, crosses)

    def train_s(self, batch: int, gpus: int, *, crosses: bool) -> float:
        return self.steps[batch] * self.step_s(batch, gpus, crosses=crosses)

    def best_train_s(self, gpus: int, *, crosses: bool) -> float:
        """Return the seconds of the training with the batch size that is fastest on these GPUs."""
        suiting = [batch for batch in self.steps if gpus <= self.most_gpus(batch)]
        return min((self.train_s(batch, gpus, crosses=crosses) for batch in suiting), default=inf)

    def _exchange_s(self, local: float, gpus: int, crosses: bool) -> float:
        measured = sorted(count for crossed, count in self.exchanges if crossed == crosses)
        by_gpus = [(count, _between(self.exchanges[crosses, count], local)) for count in measured]
        return _between(by_gpus, gpus)


@dataclass(frozen=True)
class Measured:
    """Speeds relative to the traced one. traced_s: the traced duration."""

    train_s: Times
    traced_s: float
    most_slots: int

    def rate(self, slots: float, nodes: int) -> float:
        return self.traced_s / self.train_s[nodes > 1, min(int(slots), self.most_slots)]


def _profile(folder: Path, most_local: int | None) -> Profile:
    """Read an application's profile. most_local: largest batch of a GPU; None: the largest measured one."""
    exchanges: dict[tuple[bool, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    computes: dict[int, list[float]] = defaultdict(list)

    def add(row: Mapping[str, str], gpus: int, *, crosses: bool) -> None:
        local, exchange_s = int(row["local_bsz"]), float(row["sync_time"])
        exchanges[crosses, gpus][local].append(exchange_s)
        if gpus == 1:
            computes[local].append(float(row["step_time"]) - exchange_s)

    for row in _rows(folder / "placements.csv"):
        nodes = [int(digit) for digit in row["placement"]]
        add(row, sum(nodes), crosses=len(nodes) > 1)
    for row in _rows(folder / "scalability.csv"):
        add(row, int(row["num_replicas"]), crosses=int(row["num_nodes"]) > 1)
    return Profile(
        _steps(folder),
        _means(computes),
        {key: _means(seen) for key, seen in exchanges.items()},
        min(max(computes), most_local or max(computes)),
    )


def _means(seen: Mapping[int, list[float]]) -> Points:
    return [(local, fmean(seconds)) for local, seconds in sorted(seen.items())]


def _steps(folder: Path) -> dict[int, int]:
    """Return, by batch size, the steps of the number of epochs that all batch sizes completed."""
    tables = {
        int(path.stem.removeprefix("validation-")): _rows(path) for path in folder.glob("validation-*.csv")
    }
    epochs = min(len(table) for table in tables.values())
    return {batch: int(table[epochs - 1]["iteration"]) for batch, table in sorted(tables.items())}


def _rows(path: Path) -> list[dict[str, str]]:
    return list(DictReader(path.read_text().splitlines()))


def _between(points: Points, x: float) -> float:
    """Interpolate linearly; beyond the ends, return the end's value."""
    after = bisect_left(points, (x,))
    if after == 0:
        return points[0][1]
    if after == len(points):
        return points[-1][1]
    (x0, y0), (x1, y1) = points[after - 1], points[after]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
