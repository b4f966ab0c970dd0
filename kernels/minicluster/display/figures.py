"""A figure that came from a rank, shown by the notebook as one of its own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any


def have_drawn(value: Any) -> None:
    """Have the kernel draw figures: it learns that with its own first one, and this was made elsewhere."""
    module = sys.modules.get("matplotlib.figure")
    if module is None or not isinstance(value, module.Figure):
        return
    if importlib.util.find_spec("matplotlib_inline") is not None:
        # It looks by itself whether this is a kernel whose figures stand under their cells.
        importlib.import_module("matplotlib_inline.backend_inline")
