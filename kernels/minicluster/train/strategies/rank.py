"""What a rank does about divided models at a cell's end, without importing this folder for plain ones."""

from __future__ import annotations

import sys
from typing import Any


def put_together(namespace: dict[str, Any], limit_bytes: int) -> None:
    """Make divided models whole on rank 0, if the cell made any; see `returning`."""
    if "minicluster.train.strategies.divide" in sys.modules:
        from minicluster.train.strategies.returning import put_together

        put_together(namespace, limit_bytes)


def is_part(value: object) -> bool:
    """Return whether ranks hold different parts of an object by design: they are not compared."""
    divided: Any = sys.modules.get("minicluster.train.strategies.divided")
    return divided is not None and divided.is_part(value)
