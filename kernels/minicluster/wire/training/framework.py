"""What `--framework` says: the library that trains in a cell, through which its ranks find each other."""

from __future__ import annotations

from enum import StrEnum


class Framework(StrEnum):
    """torch: ranks have a process group; jax: a coordinator; tensorflow: TF_CONFIG; none: plain Python."""

    TORCH = "torch"
    JAX = "jax"
    TENSORFLOW = "tensorflow"
    NONE = "none"
