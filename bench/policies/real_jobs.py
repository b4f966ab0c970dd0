"""Short real trainings of three kinds, for a cluster whose nodes have no GPU and share few cores.

Each step waits for a fixed time, as if for a GPU, since three nodes on two cores would not train three times
as fast. All else is real: DDP averages a real model's gradients over the nodes' network, snapshots are saved,
and a moved job resumes from one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

DEVICE_S = 0.1
EVERY = 5
"""Steps between two snapshots."""
BATCH = 8
EPOCH_STEPS = 10
"""Steps per epoch on one node; on n nodes there are n times fewer."""

TRAINING = """
import time, torch, minicluster as mc
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
{model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(data, batch_size={batch}, shuffle=True)
model, optimizer, loader = mc.prepare(model, optimizer, loader)
step = mc.resume(model, optimizer, loader)
for epoch in mc.progress(range(loader.epoch, {epochs}), label="epochs"):
    for x, truth in mc.progress(loader, label="steps"):
        loss = nn.functional.cross_entropy(model(x), truth)
        optimizer.zero_grad()
        loss.backward()
        time.sleep({device_s})
        optimizer.step()
        step += 1
        mc.checkpoint(model, optimizer, loader, step=step, every={every})
        print("step", step, time.time(), flush=True)
"""

MLP = """
data = TensorDataset(torch.randn({samples}, 64), torch.randint(10, ({samples},)))
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
"""

CNN = """
data = TensorDataset(torch.randn({samples}, 3, 16, 16), torch.randint(10, ({samples},)))
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
)
"""

TRANSFORMER = """
tokens = torch.randint(256, ({samples}, 33))
data = TensorDataset(tokens[:, :-1], tokens[:, 1:])

class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, 256)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layers(self.embedding(x), mask=mask, is_causal=True)).transpose(1, 2)

model = Language()
"""


@dataclass(frozen=True)
class Kind:
    """A kind of training with its number of epochs."""

    name: str
    model: str
    epochs: int

    def source(self, times: int = 1) -> str:
        """Return the cell, `times` as long."""
        return TRAINING.format(
            model=self.model.format(samples=BATCH * EPOCH_STEPS),
            batch=BATCH,
            epochs=self.epochs * times,
            device_s=DEVICE_S,
            every=EVERY,
        )


KINDS = (Kind("MLP", MLP, 2), Kind("CNN", CNN, 6), Kind("transformer", TRANSFORMER, 14))
"""Shortest first."""


@dataclass(frozen=True)
class Arrival:
    """A job of a workload, submitted so many seconds after the first one."""

    kind: Kind
    at_s: float


def workload(seed: int, count: int, span_s: float) -> list[Arrival]:
    """Return `count` jobs of each kind in random order, as a Poisson process over about `span_s`."""
    drawn = random.Random(seed)
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    drawn.shuffle(kinds)
    at_s, arrivals = 0.0, []
    for kind in kinds:
        arrivals.append(Arrival(kind, at_s))
        at_s += drawn.expovariate(count / span_s)
    return arrivals
