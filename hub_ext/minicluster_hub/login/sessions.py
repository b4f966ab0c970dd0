"""A person's sessions and tokens belong to one password: with another one, or without an account, they end.

What ties them is the end of the hub's `cookie_id`: the version of the account's password. It lies in
the hub's database, so a password that was changed while the hub was down counts at its next start.
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
    """Say whether the user's sessions are of this account's password; if not, end them."""
    version = account.version if account else _NOBODY
    _, tied, known = user.cookie_id.partition(".")
    if known == version:
        return True
    if tied:
        _end(user)
    else:
        _adopt(user)
    user.cookie_id = f"{orm.new_token()}.{version}"
    _session(user).commit()
    return False


def mark_server_token(user: Any, server: str, token: str) -> None:
    """Remember which token a notebook server was started with. A note could be written by anybody."""
    found = orm.APIToken.find(_session(user), token)
    if found is not None:
        found.session_id = _SERVER + server
        _session(user).commit()


def end_server_token(user: Any, server: str) -> None:
    """Delete the token of a server that stopped, also if the hub started again meanwhile."""
    _delete(user, lambda token: _is_of(token, {server}))
    _session(user).commit()


def is_kept(token: Any) -> bool:
    """Say whether a token outlived the end of its owner's sessions."""
    return token is not None and bool(inspect(token).persistent)


def _end(user: Any) -> None:
    """Delete all but the tokens of running notebook servers, whose jobs go on."""
    running = {server.name for server in user._orm_spawners if server.server}
    _delete(user, lambda token: not _is_of(token, running))
    for code in list(user.oauth_codes):
        _session(user).delete(code)


def _adopt(user: Any) -> None:
    """Take over a user of before: only browsers log in again. From then on notes count for nothing."""
    for server in user._orm_spawners:
        for token in user.api_tokens:
            if server.server and token.note == f"Server at {server.server.base_url}":
                token.session_id = _SERVER + server.name


def _is_of(token: Any, servers: set[str]) -> bool:
    # The session of an OAuth token is what its browser says: only the hub's own client counts.
    return token.client_id == _OWN_CLIENT and token.session_id in {_SERVER + server for server in servers}


def _delete(user: Any, which: Any) -> None:
    for token in list(user.api_tokens):
        if which(token):
            _session(user).delete(token)


def _session(user: Any) -> Any:
    return object_session(user)
