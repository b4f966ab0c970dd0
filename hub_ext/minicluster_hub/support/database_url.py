"""Passwords in a database's URL: found before the URL is put into arguments, and hidden in messages."""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

_PASSWORDS = frozenset({"password", "sslpassword", "oauth_client_secret"})
"""Parameters of the query that PostgreSQL's driver accepts."""


def has_password(url: str) -> bool:
    """Return whether a database's URL contains a password; False if it cannot be parsed."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return False
    return bool(parsed.password) or not _PASSWORDS.isdisjoint(parsed.query)


def without_password(url: URL) -> str:
    """Return the URL with hidden passwords, for messages."""
    hidden = {name: "***" for name in _PASSWORDS & url.query.keys()}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)
