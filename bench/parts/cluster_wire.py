"""Bytes that three nodes send in a step of data-parallel training, against the minimum of a ring all-reduce.

They are counted at the link's rate limiter, with the headers of each packet: the network device counts the
headers of a large segment once, although it is sent as many packets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from notebook import Notebook
from parts.cluster_lab import Lab, Node

NODES = 3
LINK_MBIT = 1000
LINK_MB_PER_S = 117.7
"""Maximum payload rate of a gigabit link (docs/speed.md)."""
FEW, MANY = 5, 25
GRADIENTS = """\
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
_model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(836, 836) for _ in range(16))))
_optimizer = torch.optim.SGD(_model.parameters(), lr=1e-4)
_batch = torch.randn(4, 836)

def _steps(count):
    dist.barrier()
    _began = time.perf_counter()
    for _ in range(count):
        _optimizer.zero_grad()
        _model(_batch).sum().backward()
        _optimizer.step()
    return (time.perf_counter() - _began) / count

_steps(3)
step_s = _steps({steps})
gradient_mb = sum(parameter.numel() for parameter in _model.parameters()) * 4 / 1e6
"""


@dataclass(frozen=True)
class Wire:
    """sent_mb: MB per step, by node. step_s: seconds of computing and of communication."""

    gradient_mb: float
    sent_mb: list[float]
    step_s: float

    @property
    def limit_mb(self) -> float:
        """Return the minimum that a ring all-reduce sends, in MB per node and step."""
        return 2 * (NODES - 1) / NODES * self.gradient_mb

    @property
    def sent_ratio(self) -> float:
        """Return the most that a node sent, relative to the minimum."""
        return max(self.sent_mb) / self.limit_mb

    @property
    def step_ratio(self) -> float:
        """Return a step's time relative to sending the minimum over an idle gigabit link."""
        return self.step_s / (self.limit_mb / LINK_MB_PER_S)

    def lines(self) -> list[str]:
        sent = ", ".join(f"{each:.1f}" for each in self.sent_mb)
        return [
            f"gradients {self.gradient_mb:.1f} MB; a ring all-reduce of {NODES} sends {self.limit_mb:.1f} MB"
            f" per node and step, in {self.limit_mb / LINK_MB_PER_S * 1e3:.0f} ms at {LINK_MB_PER_S} MB/s",
            f"sent per step, by node: {sent} MB ({self.sent_ratio:.3f} x at most)",
            f"a step takes {self.step_s * 1e3:.0f} ms ({self.step_ratio:.2f} x)",
        ]


async def measure_wire(lab: Lab, notebook: Notebook) -> Wire:
    """Train on links of 1 Gbit/s for two lengths; their difference is the cost of steps alone."""
    for node in lab.nodes:
        node.limit_rate(LINK_MBIT)
    try:
        await _train(lab, notebook, 1)  # warms a gang for both
        few = await _train(lab, notebook, FEW)
        many = await _train(lab, notebook, MANY)
    finally:
        for node in lab.nodes:
            node.unlimit()
    sent_mb = [(after - before) / (MANY - FEW) / 1e6 for before, after in zip(few, many, strict=True)]
    step_s = float(await notebook.kernel.evaluate("step_s"))
    return Wire(float(await notebook.kernel.evaluate("gradient_mb")), sent_mb, step_s)


async def _train(lab: Lab, notebook: Notebook, steps: int) -> list[int]:
    """Run a training cell; return how many bytes each node sent."""
    before = [wire_bytes(node) for node in lab.nodes]
    cell = GRADIENTS.format(steps=steps)
    await notebook.run(f"%%distribute --nodes {NODES} --pull step_s,gradient_mb\n{cell}")
    return [wire_bytes(node) - sent for node, sent in zip(lab.nodes, before, strict=True)]


def wire_bytes(node: Node) -> int:
    """Return how many bytes passed a node's rate limiter."""
    data = json.loads(node.run(["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"]).stdout)
    return next(limit["bytes"] for limit in data if limit["kind"] == "tbf")
