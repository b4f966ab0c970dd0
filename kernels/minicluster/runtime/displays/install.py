"""A rank's display(): put where a cell and its libraries look for a notebook's."""

from __future__ import annotations

import builtins
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from minicluster.runtime.displays.calls import Calls
from minicluster.runtime.displays.content import of_figure
from minicluster.runtime.displays.publisher import Publisher
from minicluster.runtime.rank.imports import after_import

_BACKEND = "minicluster.runtime.displays.backend"


class Displays:
    """What a rank displays, from its cell's first line to its last."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._calls = Calls(publisher)

    def install(self) -> None:
        builtins.display = self._calls.display  # type: ignore[attr-defined]
        after_import("IPython.core.display_functions", self._take_over)
        after_import("matplotlib.pyplot", self._draw_here)
        after_import("tqdm.notebook", _print_bars)

    def finish(self, value: Any = None) -> None:
        """Show the figures that are still open, as a notebook does at a cell's end, and what was held back.

        value: of the cell's last expression if the notebook shows that; a figure is not shown twice.
        """
        try:
            self._show_figures(value)
        except Exception:
            traceback.print_exc()
        self._publisher.finish()

    def _take_over(self, module: ModuleType) -> None:
        for name in ("display", "update_display", "publish_display_data", "clear_output"):
            setattr(module, name, getattr(self._calls, name))

    def _draw_here(self, pyplot: ModuleType) -> None:
        """Have matplotlib draw for the panel, unless the cell or its environment chose something else."""
        matplotlib = sys.modules["matplotlib"]
        if "MPLBACKEND" not in os.environ and matplotlib.get_backend(auto_select=False) is None:
            matplotlib.rcParams["backend"] = f"module://{_BACKEND}"
            after_import(_BACKEND, lambda backend: setattr(backend, "show", self._show_figures))

    def _show_figures(self, value: Any = None, **_: Any) -> None:
        """Show and close all open figures: plt.show()."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        if pyplot.get_backend() == f"module://{_BACKEND}":
            figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
            for figure in figures:
                if figure is not value:
                    self._publisher.show(of_figure(figure), os.urandom(8).hex())
        # Open ones would be opened again wherever they are unpickled.
        pyplot.close("all")


def _print_bars(module: ModuleType) -> None:
    """Have tqdm's bars for notebooks be those of a terminal: widgets need a kernel."""
    from minicluster.runtime.displays.bars import TextBar, text_range

    for name in ("tqdm", "tqdm_notebook"):
        setattr(module, name, TextBar)
    for name in ("trange", "tnrange"):
        setattr(module, name, text_range)
