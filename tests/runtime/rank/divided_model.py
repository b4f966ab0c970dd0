"""A small transformer for the tests of divided models, and a training beside the same in one process."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

MODEL = """
import copy, math, torch, torch.distributed as dist, minicluster as mc
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, HEADS, WORDS, LENGTH = 32, 4, 24, 6

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            part(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(seen.transpose(1, 2).reshape(batch, length, -1))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.up_proj, self.down_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down_proj(nn.functional.gelu(self.up_proj(self.norm2(x))))

class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, x):
        return self.words(x) + self.places.weight[: x.shape[1]]

class Transformer(nn.Module):
    def __init__(self, blocks=4):
        super().__init__()
        self.embedding = Embedding()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

def loss_of(output, truth):
    return nn.functional.cross_entropy(output.flatten(0, 1), truth.flatten())

def difference(some, others):
    # Attention does not depend on the bias of its keys: its gradient is noise, which Adam makes large.
    names = [name for name in others if not str(name).endswith("k_proj.bias")]
    return max(float((some[name] - others[name]).abs().max()) for name in names)

torch.manual_seed(5)
text = torch.randint(WORDS, (60, LENGTH + 1), generator=torch.Generator().manual_seed(1))
data = TensorDataset(text[:, :-1], text[:, 1:])
model = Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""

BESIDE = """
whole = copy.deepcopy(model)
whole_optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)
model, optimizer, loader = mc.prepare(
    model, optimizer, DataLoader(data, batch_size=12 // SHARES), strategy=STRATEGY, **OPTIONS
)
losses, expected, norms, expected_norms = [], [], [], []
for number, (x, y) in enumerate(loader):
    block = slice(12 * number, 12 * number + 12)
    whole_optimizer.zero_grad()
    truth = loss_of(whole(data.tensors[0][block]), data.tensors[1][block])
    truth.backward()
    expected_norms.append(float(nn.utils.clip_grad_norm_(whole.parameters(), 0.5)))
    whole_optimizer.step()
    expected.append(truth.item())

    optimizer.zero_grad()
    if STRATEGY == "pipeline":
        loss = model.step(x, y, loss_of)
    else:
        loss = loss_of(model(x), y)
        loss.backward()
    norms.append(float(mc.clip_grad_norm_(model, 0.5)))
    optimizer.step()
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    losses.append(float(loss) / mc.world_size())
explained = mc.explain(model, optimizer, link=1.0)
shown = repr(explained)
state, optimizer_state = mc.gather(model, optimizer)
if mc.rank() == 0:
    apart = difference(state, whole.state_dict())
    moments = optimizer_state["state"], whole_optimizer.state_dict()["state"]
    apart_moments = max(difference(moments[0][number], moments[1][number]) for number in moments[1])
    numbers = [group["params"] for group in optimizer_state["param_groups"]]
    expected_numbers = [group["params"] for group in whole_optimizer.state_dict()["param_groups"]]
"""

PULLED = (
    "losses", "expected", "norms", "expected_norms", "shown", "apart", "apart_moments", "numbers",
    "expected_numbers",
)  # fmt: skip


def beside(strategy: str, shares: int, **options: object) -> str:
    """Return a cell that trains a divided model, and the same in one process beside it."""
    training = BESIDE.replace("STRATEGY", repr(strategy)).replace("SHARES", str(shares))
    return MODEL + training.replace("OPTIONS", repr(options))


def some_in_gate(cases: Iterable[object], gate: Collection[object]) -> list[Any]:
    """Return the parameters of a test of which the gate has some cases only."""
    others = pytest.mark.full("the gate has some of each kind")
    return [case if case in gate else pytest.param(case, marks=others) for case in cases]
