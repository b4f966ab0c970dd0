"""What attacks are made on: the whole job service, a real hub, a browser, as elsewhere.

A file here holds the attacks on one thing. docs/security.md has a row for each: attack, what stops it, test.
"""

from ..browser.conftest import chromium, page, session, shots, site
from ..hub.conftest import lab, source_tree
from ..service.api.conftest import api, listen, offer, start_api
from ..service.conftest import postgres_server, registry, sqlite, sqlite_tables

__all__ = [
    "api",
    "chromium",
    "lab",
    "listen",
    "offer",
    "page",
    "postgres_server",
    "registry",
    "session",
    "shots",
    "site",
    "source_tree",
    "sqlite",
    "sqlite_tables",
    "start_api",
]
