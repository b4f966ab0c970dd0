"""Residual networks for pictures of 32 x 32 pixels, after He et al. 2015 (arxiv.org/abs/1512.03385).

The networks of the paper's ImageNet part, with a first layer for small pictures, as is usual for CIFAR-10
and CINIC-10: 3 x 3 with stride 1, and no pooling after it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

_STEM_PLANES = 64


class Residual(nn.Module):
    """Adds what comes in to what its layers make of it; `short` where both differ in shape."""

    def __init__(self, layers: nn.Sequential, short: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.short = short

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(x) + self.short(x))


def _convolution(planes_in: int, planes_out: int, size: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(planes_in, planes_out, size, stride, padding=size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(planes_out)]


def _residual(layers: list[nn.Module], planes_in: int, planes_out: int, stride: int) -> Residual:
    same = stride == 1 and planes_in == planes_out
    short = nn.Identity() if same else nn.Sequential(*_convolution(planes_in, planes_out, 1, stride))
    return Residual(nn.Sequential(*layers), short)


def basic(planes_in: int, planes: int, stride: int) -> Residual:
    """Two layers of 3 x 3 (figure 5, left, of the paper)."""
    layers = [*_convolution(planes_in, planes, 3, stride), nn.ReLU(), *_convolution(planes, planes, 3)]
    return _residual(layers, planes_in, planes, stride)


def bottleneck(planes_in: int, planes: int, stride: int) -> Residual:
    """1 x 1 to fewer planes, 3 x 3 there, 1 x 1 to four times as many (figure 5, right)."""
    layers = [
        *_convolution(planes_in, planes, 1),
        nn.ReLU(),
        *_convolution(planes, planes, 3, stride),
        nn.ReLU(),
        *_convolution(planes, 4 * planes, 1),
    ]
    return _residual(layers, planes_in, 4 * planes, stride)


def _network(
    block: Callable[[int, int, int], Residual], widening: int, depths: tuple[int, ...], classes: int
) -> nn.Sequential:
    """Stack blocks: the planes double and the picture halves from one stage to the next."""
    layers: list[nn.Module] = [*_convolution(3, _STEM_PLANES, 3), nn.ReLU()]
    planes_in = _STEM_PLANES
    for stage, depth in enumerate(depths):
        planes = _STEM_PLANES << stage
        for number in range(depth):
            layers.append(block(planes_in, planes, 2 if stage and not number else 1))
            planes_in = widening * planes
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(planes_in, classes))


def resnet18(classes: int = 10) -> nn.Sequential:
    """Return a network of 18 layers for (N, 3, 32, 32); it gives (N, classes)."""
    return _network(basic, 1, (2, 2, 2, 2), classes)


def resnet50(classes: int = 10) -> nn.Sequential:
    """Return a network of 50 layers for (N, 3, 32, 32); it gives (N, classes)."""
    return _network(bottleneck, 4, (3, 4, 6, 3), classes)


MODELS: dict[str, Callable[[int], nn.Sequential]] = {"resnet18": resnet18, "resnet50": resnet50}
"""By name, for settings."""
