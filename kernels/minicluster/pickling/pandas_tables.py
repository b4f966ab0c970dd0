"""How pandas' frames and series are pickled: each in a pickle of its own, made by pandas itself."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from cloudpickle import cloudpickle


def is_table(kind: type) -> bool:
    """Whether a type is that of a frame or a series."""
    frames = getattr(sys.modules.get("pandas.core.generic"), "NDFrame", None)
    return frames is not None and issubclass(kind, frames)


def taken_apart(table: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return a pickle of a table, and the memory of its columns as separate buffers, without a copy."""
    planes: list[pickle.PickleBuffer] = []
    return cloudpickle.dumps(table, protocol=5, buffer_callback=planes.append), planes


def reduce_table(table: Any) -> tuple[Any, ...]:
    return make_table, taken_apart(table)


def make_table(head: bytes, planes: list[bytes | bytearray]) -> Any:
    """Make a table with writable columns, even if those of the table that was sent were read-only."""
    return pickle.loads(head, buffers=[bytearray(it) if isinstance(it, bytes) else it for it in planes])  # noqa: S301
