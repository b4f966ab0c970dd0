"""Five small trainings, each as a cell's text: this file, and a last line `train("cnn")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import minicluster as mc

SAMPLES = 2048


class Training(NamedTuple):
    """A model, and what it is trained on in batches of a size."""

    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    batch: int


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


def cnn() -> Training:
    """ResNet18 for images of 32 by 32."""
    widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [
        one
        for before, after, stride in widths
        for one in (Block(before, after, stride), Block(after, after, 1))
    ]
    first = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return Training(model, torch.randn(SAMPLES, 3, 32, 32), torch.randint(10, (SAMPLES,)), 8)


def mlp() -> Training:
    """Wide layers: much to send for little to compute."""
    layers = [nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)]
    return Training(nn.Sequential(*layers), torch.randn(SAMPLES, 1024), torch.randint(10, (SAMPLES,)), 256)


class Classifier(nn.Module):
    """Classifies sequences of tokens by the mean of what a body makes of them."""

    def __init__(self, tokens: int, width: int, body: nn.Module) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(tokens, width), body, nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.body(self.embedding(tokens))
        return self.head((found[0] if isinstance(found, tuple) else found).mean(dim=1))


def transformer() -> Training:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
    model = Classifier(4000, 256, nn.TransformerEncoder(layer, 6))
    return Training(model, torch.randint(4000, (SAMPLES, 64)), torch.randint(10, (SAMPLES,)), 16)


def lstm() -> Training:
    model = Classifier(4000, 384, nn.LSTM(384, 512, num_layers=2, batch_first=True))
    model.head = nn.Linear(512, 10)
    return Training(model, torch.randint(4000, (SAMPLES, 48)), torch.randint(10, (SAMPLES,)), 24)


class UNet(nn.Module):
    """Two halvings of the image and back, with the finer maps beside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([_convolutions(3, width), _convolutions(width, 2 * width)])
        self.middle = _convolutions(2 * width, 4 * width)
        self.up = nn.ModuleList([_convolutions(6 * width, 2 * width), _convolutions(3 * width, width)])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        finer = []
        for layer in self.down:
            images = layer(images)
            finer.append(images)
            images = nn.functional.max_pool2d(images, 2)
        images = self.middle(images)
        for layer, beside in zip(self.up, reversed(finer), strict=True):
            larger = nn.functional.interpolate(images, scale_factor=2.0)
            images = layer(torch.cat([larger, beside], dim=1))
        return self.head(images)


def _convolutions(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1), nn.ReLU(),
    )  # fmt: skip


def unet() -> Training:
    return Training(UNet(48), torch.randn(512, 3, 64, 64), torch.randint(2, (512, 64, 64)), 4)


TRAININGS: dict[str, Callable[[], Training]] = {
    "cnn": cnn, "mlp": mlp, "transformer": transformer, "lstm": lstm, "unet": unet
}  # fmt: skip


def train(name: str) -> None:
    """Train without an end."""
    torch.manual_seed(0)
    made = TRAININGS[name]()
    loader = DataLoader(TensorDataset(made.inputs, made.targets), batch_size=made.batch, shuffle=True)
    optimizer = torch.optim.Adam(made.model.parameters(), lr=1e-4)
    model, optimizer, loader = mc.prepare(made.model, optimizer, loader)
    while True:
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
