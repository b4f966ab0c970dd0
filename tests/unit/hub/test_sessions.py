"""What a password change ends in the hub's tables: sessions and tokens, except a running server's token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from jupyterhub import orm

from minicluster_hub.login import sessions
from minicluster_hub.login.accounts_file import Account

OLD = Account(salt="00", hash="old", n=2, r=8, p=1)
NEW = replace(OLD, hash="new")
SERVER_CLIENT = "jupyterhub-user-ada"


@pytest.fixture
def db() -> Any:
    session = orm.new_session_factory("sqlite:///:memory:")()
    session.add_all([orm.OAuthClient(identifier=name) for name in ("jupyterhub", SERVER_CLIENT)])
    session.commit()
    yield session
    session.close()


@pytest.fixture
def ada(db: Any) -> Any:
    user = orm.User(name="ada")
    db.add(user)
    server = orm.Server(base_url="/user/ada/")
    db.add(orm.Spawner(user=user, name="", server=server))
    db.commit()
    return user


def token(db: Any, user: Any, note: str = "", client: str = "jupyterhub", session: str | None = None) -> Any:
    value = orm.new_token()
    made = orm.APIToken(user=user, client_id=client, note=note, session_id=session)
    made.token = value
    db.add(made)
    db.commit()
    return value, made


@pytest.mark.full("in the gate another password ends sessions")
def test_with_the_same_password_nothing_ends(db: Any, ada: Any) -> None:
    sessions.tie(ada, OLD)
    cookie, (_, mine) = ada.cookie_id, token(db, ada)
    assert sessions.tie(ada, replace(OLD, admin=True))
    assert ada.cookie_id == cookie
    assert sessions.is_kept(mine)


def test_with_another_password_all_ends_but_the_token_of_the_running_server(db: Any, ada: Any) -> None:
    sessions.tie(ada, OLD)
    cookie = ada.cookie_id
    value, servers = token(db, ada, "Server at /user/ada/")
    sessions.mark_server_token(ada, "", value)
    others = [
        token(db, ada, "mine"),
        token(db, ada, "Server at /user/ada/"),
        token(db, ada, client=SERVER_CLIENT, session="a browser's"),
        token(db, ada, client=SERVER_CLIENT, session=servers.session_id),
    ]
    db.add(orm.OAuthCode(client_id=SERVER_CLIENT, code="x", user=ada))
    db.commit()
    assert not sessions.tie(ada, NEW)
    assert ada.cookie_id != cookie
    assert not any(sessions.is_kept(made) for _, made in others)
    assert sessions.is_kept(servers)
    assert db.query(orm.OAuthCode).count() == 0
    assert sessions.tie(ada, NEW)


def test_the_token_of_a_server_that_stopped_is_gone_at_the_latest_then(db: Any, ada: Any) -> None:
    sessions.tie(ada, OLD)
    for ended in (lambda: sessions.end_server_token(ada, ""), lambda: sessions.tie(ada, NEW)):
        value, made = token(db, ada)
        sessions.mark_server_token(ada, "", value)
        for server in ada._orm_spawners:
            server.server = None
        ended()
        assert not sessions.is_kept(made)


def test_a_removed_user_and_a_new_one_of_the_same_name_share_nothing(db: Any, ada: Any) -> None:
    sessions.tie(ada, OLD)
    cookies, (_, mine) = {ada.cookie_id}, token(db, ada)
    for account in (None, OLD):
        assert not sessions.tie(ada, account)
        cookies.add(ada.cookie_id)
    assert len(cookies) == 3
    assert not sessions.is_kept(mine)


def test_a_user_of_a_former_release_keeps_tokens_and_the_servers_is_known_from_then_on(
    db: Any, ada: Any
) -> None:
    (_, mine), (_, servers) = token(db, ada, "mine"), token(db, ada, "Server at /user/ada/")
    assert not sessions.tie(ada, OLD)
    assert sessions.is_kept(mine)
    sessions.tie(ada, NEW)
    assert [sessions.is_kept(one) for one in (mine, servers)] == [False, True]
