"""The job service's options of how often users and tasks may ask, and how many streams they hold."""

from __future__ import annotations

from traitlets import Float, Integer
from traitlets.config import Configurable

from minicluster_hub.support.rates import Rate

_BURST_S = 5.0
"""After a pause, as much may come at once as otherwise in this time."""


class RequestOptions(Configurable):
    """Set them as options of MiniclusterHub."""

    user_requests_per_s = Float(
        200.0,
        min=1.0,
        help="Requests of one user in a second, by all their tokens together; five times as many at once. "
        "More serves scripts sooner, and lets one user slow down all others more.",
    ).tag(config=True)
    task_reports_per_s = Float(
        50.0,
        min=25.0,
        help="Reports and polls of one task in a second; its agent makes 20 at most.",
    ).tag(config=True)
    user_streams = Integer(
        256,
        min=1,
        help="Event streams that one user may hold open: one for each job that a notebook follows, and for "
        "each page. More costs memory.",
    ).tag(config=True)

    @property
    def user_rate(self) -> Rate:
        return Rate(self.user_requests_per_s, _BURST_S * self.user_requests_per_s)

    @property
    def report_rate(self) -> Rate:
        return Rate(self.task_reports_per_s, _BURST_S * self.task_reports_per_s)
