"""Shows a running job below its cell, as an output with the job's id and a static picture.

JupyterLab with our extension draws the job live from the service (lab/), even without the kernel. Other
front ends show the picture, which is updated from time to time, and a widget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.display import display

from minicluster.display.render import mime_bundle
from minicluster.display.view import RunView

JOB_TYPE = "application/vnd.minicluster.job+json"
_RENEW_AFTER_S = (2.0, 120.0)
"""Shortest and longest interval. Each picture modifies the document, which JupyterLab saves every 120 s."""
_RENEW_SHARE = 0.2


class PanelScreen:
    """A screen (see follow.Screen) that shows a job in a panel.

    address: the job service's address for browsers. by_page: the page draws panels without a widget.
    """

    def __init__(self, on_stop: Callable[[], None], address: str, by_page: bool) -> None:
        self._address = address
        self._handle: Any = None
        self._widget = None if by_page else LiveWidget(on_stop)
        self._opened_at = 0.0
        self._renewed_at = 0.0
        self._title = ""

    def show(self, view: RunView, now: float) -> None:
        if self._handle is None:
            self._open(view, now)
        elif now >= self._renew_at(view):
            self._renew(view, now)
            self._handle.update(self._so_far(view, now), raw=True)
        if self._widget is not None:
            self._widget.show(view, now)

    def end(self, view: RunView, now: float) -> None:
        """Leave only the final picture; for an open job, also the id by which a page follows it."""
        shown = mime_bundle(view, now) if view.job.state.terminal else self._so_far(view, now)
        if self._handle is None:
            display(shown, raw=True)
        else:
            self._handle.update(shown, raw=True)
        if self._widget is not None:
            self._widget.close()

    def _open(self, view: RunView, now: float) -> None:
        self._opened_at = now
        self._renew(view, now)
        self._handle = display(self._so_far(view, now), raw=True, display_id=True)

    def _renew(self, view: RunView, now: float) -> None:
        self._renewed_at, self._title = now, view.title()

    def _renew_at(self, view: RunView) -> float:
        """Return when the next picture is due: soon after a state change, else at growing intervals."""
        soon, late = _RENEW_AFTER_S
        gap_s = soon if view.title() != self._title else _RENEW_SHARE * (self._renewed_at - self._opened_at)
        return self._renewed_at + min(max(soon, gap_s), late)

    def _so_far(self, view: RunView, now: float) -> dict[str, Any]:
        job = view.job
        named = {"job": job.id, "service": self._address, "made": job.created_at}
        if job.cell_number:
            named["number"] = job.cell_number
        if job.origin is not None:
            named |= {"notebook": job.origin.notebook, "cell": job.origin.cell}
        return {JOB_TYPE: named, **mime_bundle(view, now)}


# The live panel as a widget, for front ends without our extension. It needs its kernel.


_WHOLE_AFTER_S = (0.3, 1.0, 2.0)
_WHOLE_EVERY_S = 10.0
_VIEW = "application/vnd.jupyter.widget-view+json"


class PanelWidget(anywidget.AnyWidget):
    """The widget's model: a page reads `state` when it opens, then receives changes as messages."""

    _esm = Path(__file__).with_name("panel.js")
    _css = Path(__file__).with_name("panel.css")
    state = traitlets.Any().tag(sync=True, to_json=lambda make, widget: make())

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Blank the text form: front ends without widgets would show the object's repr."""
        bundle = super()._repr_mimebundle_()
        if bundle is None:
            return None
        data, metadata = bundle
        return {_VIEW: data[_VIEW], "text/plain": "This front end shows no panel; add --plain."}, metadata


class LiveWidget:
    """Opens the widget and sends it a job's changes."""

    def __init__(self, on_stop: Callable[[], None]) -> None:
        self._on_stop = on_stop
        self._widget: PanelWidget | None = None
        self._handle: Any = None
        self._number = 0
        self._opened_at = 0.0
        self._whole_at = 0.0
        self._early = list(_WHOLE_AFTER_S)

    def show(self, view: RunView, now: float) -> None:
        if self._widget is None:
            self._open(view, now)
            return
        change = view.snapshot(now) if self._whole_is_due(now) else {}
        change = {**view.change(now), **change}
        if change:
            self._number += 1
            self._widget.send({**change, "number": self._number})

    def close(self) -> None:
        """Remove the widget: once the kernel is gone, no front end can show it."""
        if self._widget is None:
            return
        self._handle.update({"text/html": "", "text/plain": ""}, raw=True)
        # Close the layout too: front ends save the state of all open widgets in the notebook.
        self._widget.layout.close()
        self._widget.close()

    def _open(self, view: RunView, now: float) -> None:
        self._opened_at = self._whole_at = now
        view.change(now)
        # `state` is called when a page opens the panel, in any thread.
        self._widget = PanelWidget(state=lambda: {**view.snapshot(time.time()), "number": self._number})
        self._widget.on_msg(self._on_message)
        self._handle = display(self._widget, display_id=True)

    def _whole_is_due(self, now: float) -> bool:
        """Whether to send the full state: a loading page may have missed changes."""
        early = bool(self._early) and now - self._opened_at >= self._early[0]
        if not early and now - self._whole_at < _WHOLE_EVERY_S:
            return False
        self._early = self._early[early:]
        self._whole_at = now
        return True

    def _on_message(self, widget: object, content: Any, buffers: object) -> None:
        if isinstance(content, dict) and content.get("kind") == "stop":
            self._on_stop()
