"""A rank that trains a model of some 19 M weights by one strategy: `STRATEGY GROUP`. Prints a JSON line.

GROUP: how many ranks divide a model by "hybrid". state: bytes of this rank's weights, gradients and optimizer
state. growth: by how much its own memory grew, from before the model was made to after some steps. step_s:
the fastest step. loss: of the last step.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import minicluster as mc
from minicluster.train.strategies import tensor  # noqa: F401 - its import is no memory of the model

WIDTH, BLOCKS, STEPS = 768, 4, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up_proj, self.down_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down_proj(nn.functional.gelu(self.up_proj(self.norm(x))))


def private_bytes() -> int:
    """Return the memory that is this process's alone, without what malloc keeps for later."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private"))


def local_bytes(tensors: Any) -> int:
    return sum(one.to_local().nbytes if hasattr(one, "to_local") else one.nbytes for one in tensors)


def main() -> None:
    strategy, group = sys.argv[1], int(sys.argv[2])
    more: dict[str, Any] = {"group_size": group} if strategy == "hybrid" else {}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    before = private_bytes()
    torch.manual_seed(0)
    # Without memory, it is never whole on any rank.
    with torch.device("meta" if strategy in ("fsdp", "hybrid") else "cpu"):
        model: Any = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = mc.prepare(model, optimizer, strategy=strategy, **more)
    x, y = torch.randn(12, WIDTH), torch.randn(12, WIDTH)
    steps, loss = [], torch.zeros(())
    for _ in range(STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        if strategy == "pipeline":
            loss = model.step(x, y, nn.functional.mse_loss)
        else:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
        optimizer.step()
        steps.append(time.perf_counter() - began)
    parameters = list((model.stage if strategy == "pipeline" else model).parameters())
    held = [*parameters, *(one.grad for one in parameters if one.grad is not None)]
    held += [
        value for of in optimizer.state.values() for value in of.values() if isinstance(value, torch.Tensor)
    ]
    found = {"state": local_bytes(held), "growth": private_bytes() - before}
    print(json.dumps({**found, "step_s": min(steps), "loss": float(loss)}), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
