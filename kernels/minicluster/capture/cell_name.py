"""What a cell's job is called by itself: its notebook, and the cell's number as the notebook shows it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

_LONGEST = 80


def cell_name(number: int, names: Mapping[str, Any]) -> str:
    """Return `quickstart [3]`, or nothing in a terminal. names: the notebook's own.

    Jupyter tells the kernel its notebook in the environment, VS Code in a name.
    """
    told = os.environ.get("JPY_SESSION_NAME") or names.get("__vsc_ipynb_file__") or ""
    notebook = PurePath(str(told))
    return f"{notebook.stem[:_LONGEST]} [{number}]" if notebook.suffix == ".ipynb" else ""
