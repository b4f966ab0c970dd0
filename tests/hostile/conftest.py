"""Targets of attacks: the whole job service, a real hub, a browser, with the fixtures of other parts.

Each file here has the attacks on one target. docs/security.md has a row for each: attack, defence, test.
"""

import pytest

from ..browser.chromium import MISSING, browser, program
from ..browser.conftest import USER, page, site
from ..browser.lab import log_in
from ..hub.conftest import lab, source_tree
from ..service.api.conftest import api, listen, offer, start_api
from ..service.conftest import postgres_server, postgres_url, registry, sqlite, sqlite_tables

__all__ = [
    "api",
    "lab",
    "listen",
    "offer",
    "page",
    "postgres_server",
    "postgres_url",
    "registry",
    "site",
    "source_tree",
    "sqlite",
    "sqlite_tables",
    "start_api",
]


@pytest.fixture(scope="module")
def chromium(needs):
    """A browser for one file: while it runs, its event loop prevents `async` tests."""
    needs(program(), MISSING)
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def session(chromium, site):
    """One browser profile, logged in."""
    context = chromium.new_context()
    page = context.new_page()
    log_in(page, site.url, USER, site.password)
    page.close()
    yield context
    context.close()
