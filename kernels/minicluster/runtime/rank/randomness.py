"""A rank's own random numbers: what it was forked from has the same state for all ranks and all cells."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_anew() -> None:
    """Take a random state of this process's own, in Python, NumPy and torch, for CUDA once it is used.

    As in a process of torchrun that was started for it. A cell that seeds has its own numbers as before.
    """
    random.seed()
    np.random.seed()
    torch.seed()
