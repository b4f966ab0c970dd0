"""Installs a rank's display functions where a cell and its libraries expect the notebook's."""

from __future__ import annotations

import builtins
import os
import sys
import traceback
import uuid
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from minicluster.runtime.displays.content import TEXT, DisplayContent, content_of, of_bundle, of_figure
from minicluster.runtime.displays.publisher import Publisher
from minicluster.runtime.rank.imports import after_import

_BACKEND = "minicluster.runtime.displays.backend"


class DisplayHooks:
    """Handles a rank's displays from the first line of its cell to the last."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._calls = DisplayCalls(publisher)

    def install(self) -> None:
        builtins.display = self._calls.display  # type: ignore[attr-defined]
        after_import("IPython.core.display_functions", self._take_over)
        after_import("matplotlib.pyplot", self._draw_here)
        after_import("tqdm.notebook", _print_bars)

    def finish(self, value: Any = None) -> None:
        """Show open figures, as a notebook does at a cell's end, and updates that were throttled.

        value: the last expression's value if the notebook shows it; a figure is not shown twice.
        """
        try:
            self._show_figures(value)
        except Exception:
            traceback.print_exc()
        self._publisher.finish()

    def show(self, value: Any) -> None:
        """Show the value of a cell's last expression."""
        self._calls.display(value)

    def _take_over(self, module: ModuleType) -> None:
        for name in ("display", "update_display", "publish_display_data", "clear_output"):
            setattr(module, name, getattr(self._calls, name))

    def _draw_here(self, pyplot: ModuleType) -> None:
        """Make matplotlib draw for the panel, unless the cell or the environment chose a backend."""
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
        # Unpickling an open figure would open it again.
        pyplot.close("all")


def _print_bars(module: ModuleType) -> None:
    """Replace tqdm's notebook bars by terminal bars: widgets need a kernel."""
    from minicluster.runtime.displays.bars import TextBar, text_range

    for name in ("tqdm", "tqdm_notebook"):
        setattr(module, name, TextBar)
    for name in ("trange", "tnrange"):
        setattr(module, name, text_range)


# The functions of `IPython.display` on a rank, with the same names and arguments.


class DisplayHandle:
    """Returned by display(..., display_id=True); `update` replaces what was displayed."""

    def __init__(self, calls: DisplayCalls, display_id: str) -> None:
        self.display_id = display_id
        self._calls = calls

    def display(self, obj: Any, **options: Any) -> None:
        self._calls.display(obj, display_id=self.display_id, **options)

    def update(self, obj: Any, **options: Any) -> None:
        self._calls.update_display(obj, display_id=self.display_id, **options)


class DisplayCalls:
    """display() and related functions, bound to a rank's publisher."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def display(
        self,
        *objs: Any,
        include: Any = None,
        exclude: Any = None,
        metadata: Any = None,
        transient: Any = None,
        display_id: Any = None,
        raw: bool = False,
        clear: bool = False,
        **kwargs: Any,
    ) -> DisplayHandle | None:
        """Show objects in this rank's tab of the cell's panel."""
        if display_id is None and transient:
            display_id = transient.get("display_id")
        if display_id is True or (display_id is None and not objs):
            display_id = uuid.uuid4().hex
        if clear:
            self._publisher.clear(wait=True)
        update = kwargs.get("update", False)
        for obj in objs:
            content = of_bundle(obj, metadata) if raw else content_of(obj)
            self._publish(_chosen(content, include, exclude), display_id, update)
        return None if display_id is None else DisplayHandle(self, display_id)

    def update_display(self, obj: Any, *, display_id: str, **options: Any) -> None:
        self.display(obj, display_id=display_id, **{**options, "update": True})

    def publish_display_data(
        self,
        data: Mapping[str, Any],
        metadata: Any = None,
        *,
        transient: Any = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        self._publish(of_bundle(data, metadata), (transient or {}).get("display_id"), update)

    def clear_output(self, wait: bool = False) -> None:
        self._publisher.clear(wait=wait)

    def _publish(self, content: DisplayContent, display_id: str | None, update: bool) -> None:
        if update and display_id is not None:
            self._publisher.change(content, display_id)
        elif content.plain and display_id is None:
            print(content.text)  # noqa: T201 - a terminal's display() prints, too
        else:
            self._publisher.show(content, display_id or uuid.uuid4().hex)


def _chosen(content: DisplayContent, include: Any, exclude: Any) -> DisplayContent:
    wanted = set(content.data) if not include else {TEXT, *include}
    wanted -= set(exclude or ())
    content.data = {mime: shown for mime, shown in content.data.items() if mime in wanted}
    return content
