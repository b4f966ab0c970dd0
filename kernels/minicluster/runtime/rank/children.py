"""Gives processes that a cell starts by multiprocessing's spawn the cell's definitions and folder.

Such a process imports `__main__` from its file. A cell has no file, so its functions and classes are pickled
by value.
"""

from __future__ import annotations

import os
import sys
from multiprocessing import process, reduction, util
from pathlib import Path
from types import FunctionType
from typing import Any

from minicluster.pickling import pickling
from minicluster.runtime.rank.environment import AGENT_STORE


def prepare(namespace: dict[str, Any]) -> None:
    """Give processes started from now on the current folder and the cell's definitions."""
    process.ORIGINAL_DIR = str(Path.cwd())  # type: ignore[attr-defined]
    util.spawnv_passfds = _spawn  # type: ignore[attr-defined]
    if "__file__" not in namespace:
        send_cell()


def send_cell() -> None:
    """Make multiprocessing pickle functions and classes of a cell by value."""
    reduction.ForkingPickler.reducer_override = _reduce  # type: ignore[attr-defined]


def take_cell(data: bytes) -> Any:
    """Unpickle a cell's function or class in the other process."""
    send_cell()
    return pickling.loads(data, vars(sys.modules["__main__"]))["it"]


def _reduce(_pickler: Any, it: Any) -> Any:
    if isinstance(it, FunctionType | type) and it.__module__ == "__main__":
        what = f"What {it.__qualname__} of the cell needs in another process"
        return take_cell, (pickling.dumps({"it": it}, vars(sys.modules["__main__"]), what),)
    return NotImplemented


_spawnv = util.spawnv_passfds


def _spawn(*args: Any) -> Any:
    """Start a process whose process groups use their own stores, as its script expects."""
    setting = os.environ.pop(AGENT_STORE, None)
    try:
        return _spawnv(*args)
    finally:
        if setting is not None:
            os.environ[AGENT_STORE] = setting
