"""Step times as Pollux's authors measured them, and what follows: how fast a job is on how many GPUs.

placements.csv has the seconds of a step on up to 16 GPUs, by how many there were on each node ("112": three
nodes), scalability.csv on more; `sync_time` is the part of a step that waits for gradients. validation-B.csv
has the steps that were done by the end of each epoch with batches of B, so that what a larger batch loses in
each step's worth is measured too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from csv import DictReader
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf
from statistics import fmean

from minicluster_hub.simulator.traces import Trace

Points = Sequence[tuple[float, float]]
MOST_GPUS = 64


@dataclass(frozen=True)
class Profile:
    """Of one application. `steps`: to the end of training, by batch size.

    computes: (local batch size, seconds) of a step without its exchange.
    exchanges: the same of the exchange alone, by (on several nodes, GPUs).
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
        """Return the seconds of a step; what does not fit into a GPU at once is done one after another."""
        local = ceil(batch / gpus)
        turns = ceil(local / self.most_local)
        local = ceil(local / turns)
        return turns * _between(self.computes, local) + self._exchange_s(local, gpus, crosses)

    def train_s(self, batch: int, gpus: int, *, crosses: bool) -> float:
        return self.steps[batch] * self.step_s(batch, gpus, crosses=crosses)

    def best_train_s(self, gpus: int, *, crosses: bool) -> float:
        """Return the same with the batch size that suits so many GPUs best."""
        suiting = [batch for batch in self.steps if gpus <= self.most_gpus(batch)]
        return min((self.train_s(batch, gpus, crosses=crosses) for batch in suiting), default=inf)

    def _exchange_s(self, local: float, gpus: int, crosses: bool) -> float:
        measured = sorted(count for crossed, count in self.exchanges if crossed == crosses)
        by_gpus = [(count, _between(self.exchanges[crosses, count], local)) for count in measured]
        return _between(by_gpus, gpus)


@dataclass(frozen=True)
class Measured:
    """Speeds relative to the traced ones. `train_s`: by (on several nodes, GPUs), from one GPU on."""

    train_s: Mapping[tuple[bool, int], float]
    traced_s: float
    most_slots: int

    def rate(self, slots: int, nodes: int) -> float:
        return self.traced_s / self.train_s[nodes > 1, min(slots, self.most_slots)]


def load(trace: Trace, folder: str, most_local: int | None) -> Profile:
    """Read an application's profile. `most_local`: a limit that the measurements go beyond."""
    exchanges: dict[tuple[bool, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    computes: dict[int, list[float]] = defaultdict(list)
    for row in DictReader(trace.beside(f"{folder}/placements.csv").splitlines()):
        nodes = [int(digit) for digit in row["placement"]]
        _add(row, len(nodes) > 1, sum(nodes), exchanges, computes)
    for row in DictReader(trace.beside(f"{folder}/scalability.csv").splitlines()):
        _add(row, int(row["num_nodes"]) > 1, int(row["num_replicas"]), exchanges, computes)
    return Profile(
        _steps(trace, folder),
        _means(computes),
        {key: _means(seen) for key, seen in exchanges.items()},
        min(max(computes), most_local or max(computes)),
    )


def _add(
    row: Mapping[str, str],
    crosses: bool,
    gpus: int,
    exchanges: dict[tuple[bool, int], dict[int, list[float]]],
    computes: dict[int, list[float]],
) -> None:
    local, exchange_s = int(row["local_bsz"]), float(row["sync_time"])
    exchanges[crosses, gpus][local].append(exchange_s)
    if gpus == 1:
        computes[local].append(float(row["step_time"]) - exchange_s)


def _means(seen: Mapping[int, list[float]]) -> Points:
    return [(local, fmean(seconds)) for local, seconds in sorted(seen.items())]


def _steps(trace: Trace, folder: str) -> dict[int, int]:
    tables = {}
    for name in trace.names(folder):
        if name.startswith("validation-"):
            batch = int(name.removeprefix("validation-").removesuffix(".csv"))
            tables[batch] = list(DictReader(trace.beside(f"{folder}/{name}").splitlines()))
    epochs = min(len(table) for table in tables.values())
    return {batch: int(table[epochs - 1]["iteration"]) for batch, table in sorted(tables.items())}


def _between(points: Points, x: float) -> float:
    """Interpolate linearly; beyond the ends, take the end's value."""
    after = bisect_left(points, (x,))
    if after == 0:
        return points[0][1]
    if after == len(points):
        return points[-1][1]
    (x0, y0), (x1, y1) = points[after - 1], points[after]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
