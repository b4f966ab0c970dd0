"""For pictures: `from minicluster import vision`; folders of small PNG files, and networks for them."""

from __future__ import annotations

from .batches import augmented, normalized
from .decoding import DamagedImage
from .folders import Images, WrongLayout
from .resnet import MODELS, resnet18, resnet50

__all__ = [
    "MODELS",
    "DamagedImage",
    "Images",
    "WrongLayout",
    "augmented",
    "normalized",
    "resnet18",
    "resnet50",
]
