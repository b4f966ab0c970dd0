"""For pictures: `from minicluster import vision`; folders of small PNG files, and networks for them."""

from __future__ import annotations

from minicluster.vision.batches import augmented, normalized
from minicluster.vision.decoding import DamagedImage
from minicluster.vision.folders import Images, WrongLayout
from minicluster.vision.resnet import MODELS, resnet18, resnet50

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
