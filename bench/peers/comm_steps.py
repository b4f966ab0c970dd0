"""A rank that trains ResNet18 on images of CIFAR-10's shape: `STEPS LAST [COMM]`. Prints a JSON line.

step_s: mean of the last LAST steps. sent: bytes that this host sent in them, for each step. said: what
`--comm auto` printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from minicluster.train.comm import rank as comm
from minicluster.train.metrics import sending, step_times

BATCH = 4


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.norms[0](self.first(images)))
        return torch.relu(self.norms[1](self.second(found)) + self.shortcut(images))


def resnet18() -> nn.Module:
    """Return He et al.'s network of 18 layers for images of 32 by 32: 11.2 M weights."""
    widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [
        block
        for before, after, stride in widths
        for block in (Block(before, after, stride), Block(after, after, 1))
    ]
    first = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def sent_bytes() -> int:
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def main() -> None:
    steps, last = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sending.begin()
    step_times.install()
    if len(sys.argv) > 3:
        comm.follow(sys.argv[3])
    torch.manual_seed(0)
    model = DistributedDataParallel(resnet18())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(int(os.environ["RANK"]))
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    said = io.StringIO()
    began, sent = 0.0, 0
    with contextlib.redirect_stderr(said):
        for step in range(steps):
            if step == steps - last:
                began, sent = time.perf_counter(), sent_bytes()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    took = (time.perf_counter() - began) / last
    sent = (sent_bytes() - sent) // last
    comm.average_weights()
    print(json.dumps({"step_s": took, "sent": sent, "said": said.getvalue().strip()}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
