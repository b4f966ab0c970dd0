"""Passwords in a database's URL: found before they stand in an argument, and hidden in messages."""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

_PASSWORDS = frozenset({"password", "sslpassword", "oauth_client_secret"})
"""PostgreSQL's driver takes these in the query."""


def has_password(url: str) -> bool:
    """Whether a database's URL holds a password, as far as it can be read as one."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return False
    return bool(parsed.password) or not _PASSWORDS.isdisjoint(parsed.query)


def without_password(url: URL) -> str:
    """Return the URL for messages."""
    hidden = {name: "***" for name in _PASSWORDS & url.query.keys()}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)
