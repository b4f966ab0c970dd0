"""Ends a user's sessions and tokens when the password changes or the account is removed.

The hub's `cookie_id` of a user ends with the version of the account's password. It is in the hub's database,
so a password that changes while the hub is down ends the sessions at the hub's next start.
"""

from __future__ import annotations

from typing import Any

from jupyterhub import orm
from sqlalchemy import inspect
from sqlalchemy.orm import object_session

from minicluster_hub.login.accounts_file import Account

_NOBODY = "removed"
_SERVER = "notebook-server:"
_OWN_CLIENT = "jupyterhub"


def tie(user: Any, account: Account | None) -> bool:
    """Return whether the user's sessions belong to this account's password. If not, end them."""
    version = account.version if account else _NOBODY
    _, tied, before = user.cookie_id.partition(".")
    if before == version:
        return True
    if tied:
        _end(user)
    else:
        _adopt(user)
    user.cookie_id = f"{orm.new_token()}.{version}"
    _session(user).commit()
    return False


def mark_server_token(user: Any, server: str, token: str) -> None:
    """Mark the token of a notebook server. Not by its note, since anybody can write one."""
    found = orm.APIToken.find(_session(user), token)
    if found is not None:
        found.session_id = _SERVER + server
        _session(user).commit()


def end_server_token(user: Any, server: str) -> None:
    """Delete the token of a server that stopped, even if the hub restarted in between."""
    _delete(user, lambda token: _is_of(token, {server}))
    _session(user).commit()


def is_kept(token: Any) -> bool:
    """Return whether a token still exists after its owner's sessions were ended."""
    return token is not None and bool(inspect(token).persistent)


def _end(user: Any) -> None:
    """Delete all tokens but those of running notebook servers: the servers keep running."""
    running = {server.name for server in user._orm_spawners if server.server}
    _delete(user, lambda token: not _is_of(token, running))
    for code in list(user.oauth_codes):
        _session(user).delete(code)


def _adopt(user: Any) -> None:
    """Mark the server tokens of a user of an earlier release, by their notes; browsers must log in again."""
    for server in user._orm_spawners:
        for token in user.api_tokens:
            if server.server and token.note == f"Server at {server.server.base_url}":
                token.session_id = _SERVER + server.name


def _is_of(token: Any, servers: set[str]) -> bool:
    # A browser chooses the session id of its OAuth token, so only tokens of the hub's own client count.
    return token.client_id == _OWN_CLIENT and token.session_id in {_SERVER + server for server in servers}


def _delete(user: Any, which: Any) -> None:
    for token in list(user.api_tokens):
        if which(token):
            _session(user).delete(token)


def _session(user: Any) -> Any:
    return object_session(user)
