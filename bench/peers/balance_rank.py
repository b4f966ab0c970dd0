"""A rank whose card takes SECONDS for each sample: `SECONDS STEPS LAST [--balance]`. Prints a JSON line.

The card is simulated: the forward pass of a small network that is trained, and then a sleep for each sample,
which leaves the processor to the other ranks. step_s: mean of the last LAST steps. shares: samples of this
rank in each step.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import minicluster as mc
from minicluster.train.balance import rank as balance
from minicluster.train.metrics import sending

BATCH = 64


class Card(nn.Module):
    """A network on a card with a limited rate."""

    def __init__(self, sample_s: float) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.sample_s = sample_s

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(len(images) * self.sample_s)
        return self.network(images)


def main() -> None:
    sample_s, steps, last = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    sending.begin()
    if os.environ["WORLD_SIZE"] != "1":
        dist.init_process_group("gloo")
    if "--balance" in sys.argv:
        balance.follow(None)
    torch.manual_seed(0)
    model = Card(sample_s)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    size = BATCH * int(os.environ["WORLD_SIZE"]) * steps
    data = TensorDataset(torch.randn(size, 64), torch.randint(10, (size,)))
    ready, optimizer, loader = mc.prepare(model, optimizer, DataLoader(data, BATCH, shuffle=True))
    shares, began = [], 0.0
    for step, (images, labels) in enumerate(loader):
        if step == steps - last:
            began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(ready(images), labels).backward()
        optimizer.step()
        shares.append(len(images))
    print(json.dumps({"step_s": (time.perf_counter() - began) / last, "shares": shares}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
