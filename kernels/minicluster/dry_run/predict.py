"""From what virtual ranks measured to how long a step and an epoch take on more nodes. Pure.

A step's own time was measured; the network's is added. Each collective goes on the network when the rank
called it, or when the ones before are through. What is still on its way when the last one was called holds
up the step: the backward pass hides the rest. On a CPU that has its price: what exchanges takes its part of
the cores from what computes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from minicluster.dry_run.measured import CPU, Collective, Epoch, RankFindings, Step
from minicluster.train.comm.choice import Measured, choose
from minicluster.wire.comm import AUTO, METHODS, CommMethod

AUTO_START = 11
"""The steps that --comm auto makes before it chooses."""


@dataclass(frozen=True)
class Link:
    """What two nodes exchange. gbit_s: of the cable. known: it was given; otherwise it is a guess.

    A TCP connection gets 0.94 of a cable's rate on frames of 1,500 bytes; Gloo's and NCCL's rings reach about
    0.95 of that (bench/comm.py). latency_s: of a message.
    """

    gbit_s: float = 1.0
    known: bool = False
    latency_s: float = 0.0002
    efficiency: float = 0.94 * 0.95
    core_s_per_byte: float = 1e-9
    """What Gloo takes of a core to send, receive and add a byte: 0.9 to 1.3 ns, of fp32 and bf16."""

    @property
    def bytes_s(self) -> float:
        return self.gbit_s * 1e9 / 8 * self.efficiency

    def reduce_s(self, size_bytes: int, ranks: int) -> float:
        """Return how long a ring takes to reduce so many bytes over all ranks."""
        if ranks < 2:
            return 0.0
        hops = 2 * (ranks - 1)
        return hops / ranks * size_bytes / self.bytes_s + hops * self.latency_s

    def taken(self, cores: int) -> float:
        """Return which part of so many computing cores a busy link takes: of one, at most a fair half."""
        return min(self.bytes_s * self.core_s_per_byte, 0.5) / cores


@dataclass(frozen=True)
class Prediction:
    """How long a step is on a number of nodes. exposed_s: the part that the network adds to it."""

    nodes: int
    step_s: float
    exposed_s: float


def exposed_s(collectives: Sequence[Collective], link: Link, ranks: int, taken: float = 0.0) -> float:
    """Return by how much the network makes a step longer. taken: of computing, by a busy link (0 to 1)."""
    delay = free_at = before_s = 0.0
    for one in collectives:
        hidden = max(0.0, min(one.at_s - before_s, (free_at - before_s - delay) * (1 - taken)))
        delay += hidden * taken / (1 - taken)
        free_at = max(free_at, one.at_s + delay) + link.reduce_s(one.size_bytes, ranks)
        if one.blocks:
            delay = free_at - one.at_s
        before_s = one.at_s
    return free_at - before_s


class StepModel:
    """Predicts steps from the timed ones of a virtual rank. ranks_per_node: they share their node's cable."""

    def __init__(self, findings: RankFindings, ranks_per_node: int, link: Link) -> None:
        self._times = findings.times
        self._ranks_per_node = ranks_per_node
        self._link = link
        self._taken = link.taken(findings.threads) if findings.device == CPU else 0.0

    @property
    def methods(self) -> tuple[str, ...]:
        """The ways to communicate of which something is known."""
        if "alone" not in self._times:
            return ("own",) if "own" in self._times else ()
        known = [name for name in METHODS if name != AUTO and self._parts(name)]
        return (*known, AUTO) if {"ddp", "bf16", "localsgd"} <= {*known} else tuple(known)

    def predict(self, method: CommMethod, nodes: int) -> Prediction:
        """Return how long a step takes that communicates so."""
        if nodes == 1 and self._ranks_per_node == 1:
            return Prediction(1, _typical(self._times.get("alone") or self._times["own"]), 0.0)
        if method.name == AUTO:
            method = self.chosen(nodes)
        own_s, exposed = self._step(method, nodes) if "own" not in self._times else self._own(nodes)
        return Prediction(nodes, own_s + exposed, exposed)

    def chosen(self, nodes: int) -> CommMethod:
        """Return what --comm auto would choose."""
        alone = _typical(self._times["alone"])
        plain, bf16 = self._whole_s("ddp", nodes), self._whole_s("bf16", nodes)
        power = self._whole_s("powersgd", nodes) if "powersgd" in self._times else None
        measured = Measured(
            compute=alone,
            plain=self.predict(CommMethod("ddp"), nodes).step_s,
            exact=plain,
            bf16=bf16,
            powersgd=power,
            weights=self._averaging_s(nodes),
        )
        return choose(measured, AUTO_START).method

    def _step(self, method: CommMethod, nodes: int) -> tuple[float, float]:
        """Return the own time of a step, and for how long it waits for the network."""
        steps = self._parts(method.name)
        if method.name not in ("localsgd", "diloco"):
            return _typical(steps), self._exposed(steps, nodes)
        alone, period = _typical(self._times["alone"]), method.whole("period")
        exposed = self._exposed(steps, nodes) * (2 if method["sent"] == "fp32" else 1)
        return alone + (_typical(steps) - alone) / period, exposed / period

    def _own(self, nodes: int) -> tuple[float, float]:
        steps = self._times["own"]
        return _typical(steps), self._exposed(steps, nodes)

    def _averaging_s(self, nodes: int) -> float:
        steps = self._parts("localsgd")
        return _typical(steps) - _typical(self._times["alone"]) + self._exposed(steps, nodes)

    def _whole_s(self, name: str, nodes: int) -> float:
        """Return how long the communication of a step takes alone."""
        steps = self._parts(name)
        sent = sum(one.size_bytes for one in steps[-1].collectives)
        own_s = max(0.0, _typical(steps) - _typical(self._times["alone"]))
        return own_s + (self._link.reduce_s(sent, nodes * self._ranks_per_node) if nodes > 1 else 0.0)

    def _exposed(self, steps: Sequence[Step], nodes: int) -> float:
        if nodes < 2:
            return 0.0
        ranks = nodes * self._ranks_per_node
        return statistics.median(
            exposed_s(step.collectives, self._link, ranks, self._taken) for step in steps
        )

    def _parts(self, name: str) -> Sequence[Step]:
        """Return the timed steps that a method is made of."""
        alike = {"fp16": "bf16", "localsgd": "average", "diloco": "average"}
        return self._times.get(alike.get(name, name), ())


def _typical(steps: Sequence[Step]) -> float:
    return statistics.median(step.seconds for step in steps)


def epoch_steps(epoch: Epoch, ranks: int) -> int:
    """Return how many steps each rank makes in an epoch."""
    if not epoch.shared or not epoch.batch_size:
        return epoch.batches
    return math.ceil(math.ceil(epoch.samples / ranks) / epoch.batch_size)


def node_counts(nodes: int) -> tuple[int, ...]:
    """Return for which numbers of nodes to predict: all up to some, then powers of two."""
    if nodes <= 6:
        return tuple(range(1, nodes + 1))
    return tuple(sorted({*(2**power for power in range(nodes.bit_length()) if 2**power <= nodes), nodes}))


@dataclass(frozen=True)
class Memory:
    """Bytes that a rank takes at its peak. other: data, buckets, workspaces of the process.

    base: Python and torch themselves, which the ranks of a node share in part.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    other: int
    base: int

    @property
    def peak(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.other


def memory_of(timed: RankFindings, traced: RankFindings | None) -> Memory:
    """Return the memory of a rank. timed, traced: of ranks that ran so."""
    sizes = timed.sizes
    activations = 0
    if traced is not None and traced.traced is not None:
        activations = max(0, traced.traced.peak - traced.traced.left)
    activations = min(activations, max(0, timed.growth_bytes - sizes.total))
    other = max(0, timed.growth_bytes - sizes.total - activations)
    return Memory(sizes.weights, sizes.gradients, sizes.optimizer, activations, other, timed.base_bytes)


def rows(
    model: StepModel, nodes: Sequence[int], asked: CommMethod | None = None
) -> Iterator[tuple[str, Mapping[int, Prediction]]]:
    """Yield each way to communicate with its predictions, by number of nodes. asked: comes first."""
    methods = {name: CommMethod(name if name in METHODS else "ddp") for name in model.methods}
    if asked is not None and asked.given and asked.name in methods:
        methods = {str(asked): asked, **methods}
    for name, method in methods.items():
        yield name, {count: model.predict(method, count) for count in nodes}
