"""What a rank does about divided models at a cell's end, without importing this folder for plain ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
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


def end_with_group(namespace: Mapping[str, Any]) -> None:
    """Forget the models that were divided over a process group that is gone, and say it of those with a name.

    Unlike those in DistributedDataParallel, they cannot go on: what a rank lacks was reached by that group.
    """
    divided: Any = sys.modules.get("minicluster.train.strategies.divided")
    if divided is None:
        return
    names = [name for name, value in namespace.items() if divided.divided_of(value) is not None]
    for model, _ in list(divided.all_divided()):
        divided.forget(model)
    if names and os.environ.get("RANK") == "0":
        print(  # noqa: T201
            f"Divided among ranks that lost each other: {', '.join(sorted(names))}. Make it again; with "
            "mc.resume() it goes on from the newest snapshot.",
        )
