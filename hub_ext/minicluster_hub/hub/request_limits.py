"""What a single request may bring to the hub, and how long it may take."""

from __future__ import annotations

from tornado.httpserver import HTTPServer

MOST_BYTES = 1 << 18
"""All that pages and programs send the hub is short; names of 3000 people at once are the longest."""
_BODY_S = 60.0


def limit_requests() -> None:
    """Have servers made from now on refuse longer bodies. JupyterHub has no setting for it.

    Tornado's own limit is 100 MB, kept in memory until the whole body came: strangers, who send a login form
    that never ends, and some dozen times, would have all of the machine's.
    """
    HTTPServer.configure(None, max_body_size=MOST_BYTES, body_timeout=_BODY_S)
