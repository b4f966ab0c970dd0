"""A running job under its cell: an output that names the job, with its picture.

JupyterLab with our extension draws the named job from the service (lab/), even without the kernel. Other
front ends show the picture, which is renewed from time to time, and a widget beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.display import display

from minicluster.display.render import mime_bundle
from minicluster.display.view import RunView
from minicluster.display.widget import LiveWidget

JOB_TYPE = "application/vnd.minicluster.job+json"
_RENEW_AFTER_S = (2.0, 120.0)
"""Least and most. Each new picture changes the document, which JupyterLab saves every 120 s."""
_RENEW_SHARE = 0.2


class PanelScreen:
    """A screen (see follow.Screen) that shows a job in a panel.

    address: of the job service for the notebook's pages. by_page: whether these draw panels themselves.
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
        """Leave the final picture alone, or what a page needs to follow an open job."""
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
        """Return when the next picture is due: soon after a change of state, else after growing gaps."""
        soon, late = _RENEW_AFTER_S
        gap_s = soon if view.title() != self._title else _RENEW_SHARE * (self._renewed_at - self._opened_at)
        return self._renewed_at + min(max(soon, gap_s), late)

    def _so_far(self, view: RunView, now: float) -> dict[str, Any]:
        job = view.job
        named = {"job": job.id, "service": self._address, "made": job.created_at}
        if job.origin is not None:
            named |= {"notebook": job.origin.notebook, "cell": job.origin.cell}
        return {JOB_TYPE: named, **mime_bundle(view, now)}
