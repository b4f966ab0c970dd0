"""A small folder of generated images with CINIC-10's layout, and the module beside the notebook."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.append(str(Path(__file__).parents[3] / "notebooks"))
cinic10_data = importlib.import_module("cinic10_data")

CLASSES = ("airplane", "cat", "frog")
EACH = 4


def picture(seed: int, mode: str = "RGB", side: int = 32) -> Image.Image:
    drawn = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(drawn).convert(mode)


def planes(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes with four images in each split, named as in CINIC-10; one of four is grey."""
    for split in ("train", "valid", "test"):
        for number, name in enumerate(CLASSES):
            folder = tmp_path / "cinic10" / split / name
            folder.mkdir(parents=True)
            for each in range(EACH):
                file = f"cifar10-{split}-{each}.png" if each % 2 else f"n0123{number}_{each}.png"
                mode = "L" if each == 3 else "RGB"
                picture(100 * number + each, mode).save(folder / file)
    return tmp_path / "cinic10"
