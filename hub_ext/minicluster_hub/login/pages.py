"""Handlers that we add to the hub: the pages Password and (for admins) People, and a limit of tokens."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyterhub.apihandlers.users import UserTokenListAPIHandler
from jupyterhub.handlers import BaseHandler
from tornado.web import HTTPError, authenticated

from minicluster_hub.login import sessions
from minicluster_hub.login.accounts_file import (
    LONGEST_PASSWORD,
    SHORTEST_PASSWORD,
    PasswordError,
    PasswordFile,
    PasswordRefused,
    check_new_password,
    check_user_name,
)
from minicluster_hub.login.password_check import LoginRefused

MOST_TOKENS, LONGEST_NOTE = 200, 1000
"""JupyterHub's table allows notes of 1023 characters, but SQLite does not enforce it."""
_OWN_CLIENT = "jupyterhub"
FIELDS = ("present", "new", "again")


class _AccountPage(BaseHandler):
    """What both pages share. They accept only a browser's cookie, no token."""

    template = ""

    @property
    def me(self) -> Any:
        """The calling user; `authenticated` ensures that there is one."""
        return self.current_user

    @property
    def login(self) -> Any:
        """Our authenticator, which added these pages."""
        return self.authenticator

    @property
    def accounts(self) -> PasswordFile:
        return self.login.passwords

    async def show(self, *, status: int = 200, **words: Any) -> None:
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        self.finish(await self.render_template(self.template, **words))


class PasswordPage(_AccountPage):
    """Changes a user's own password. It needs the present one, and ends all other sessions."""

    template = "password.html"

    @authenticated
    async def get(self) -> None:
        await self._form()

    @authenticated
    async def post(self) -> None:
        try:
            await self._change(*(self.get_body_argument(field, "", strip=False) for field in FIELDS))
        except LoginRefused as error:
            await self._form(status=429, error=str(error))
        except PasswordError as error:
            await self._form(status=400, error=str(error))
        else:
            await self._form(done=True)

    async def _change(self, present: str, new: str, again: str) -> None:
        name = self.me.name
        if new != again:
            raise PasswordRefused("The two new passwords differ: type the same in both fields.")
        check_new_password(name, new)
        if await self.login.check(self, name, present) is None:
            raise PasswordRefused("The present password is wrong.")
        await asyncio.to_thread(self.accounts.set_password, name, new)
        sessions.tie(self.me.orm_user, self.accounts.users().get(name))
        self.set_login_cookie(self.me)

    async def _form(self, **words: Any) -> None:
        await self.show(**{"shortest": SHORTEST_PASSWORD, "longest": LONGEST_PASSWORD, **words})


class PeoplePage(_AccountPage):
    """The list of users, for admins: they add and remove users, reset passwords, make admins."""

    template = "people.html"

    @authenticated
    async def get(self) -> None:
        self._admit()
        await self._list()

    @authenticated
    async def post(self) -> None:
        self._admit()
        acts = {"add": self._add, "reset": self._reset, "remove": self._remove, "admin": self._admin}
        act = acts.get(self.get_body_argument("action", ""))
        if act is None:
            raise HTTPError(400, f"No such action. There are: {', '.join(acts)}.")
        try:
            name = check_user_name(self.get_body_argument("name", ""))
            self._check_rights(name)
            words = await act(name)
        except PasswordError as error:
            words = {"status": 400, "error": str(error)}
        await self._list(**words)

    def _admit(self) -> None:
        # The whole scope: a manager of one group's users must not set everybody's passwords.
        if not self.has_scope("admin:users"):
            raise HTTPError(403, "This page needs the right to manage all users.")

    def _check_rights(self, name: str) -> None:
        account = self.accounts.users().get(name)
        if (self._asks_admin or (account and account.admin)) and not self.me.admin:
            raise HTTPError(403, "Only an admin may change or make an admin.")

    @property
    def _asks_admin(self) -> bool:
        return self.get_body_argument("admin", "") == "yes"

    async def _add(self, name: str) -> dict[str, Any]:
        password = await asyncio.to_thread(self.accounts.add, name, admin=self._asks_admin)
        return {"whose": name, "password": password, "done": f"{name} can log in."}

    async def _reset(self, name: str) -> dict[str, Any]:
        password = await asyncio.to_thread(self.accounts.reset, name)
        self._end_sessions(name)
        if name == self.me.name:
            self.set_login_cookie(self.me)
        return {"whose": name, "password": password, "done": f"{name} has a new password."}

    async def _remove(self, name: str) -> dict[str, Any]:
        self._refuse_oneself(name, "remove yourself")
        await asyncio.to_thread(self.accounts.remove, name)
        user = self._end_sessions(name)
        if user is not None:
            await stop_servers(self, user)
        return {"done": f"{name} can no longer log in. The home and the jobs stay."}

    async def _admin(self, name: str) -> dict[str, Any]:
        self._refuse_oneself(name, "change your own admin rights")
        await asyncio.to_thread(self.accounts.set_admin, name, self._asks_admin)
        return {"done": f"{name} is {'an' if self._asks_admin else 'no'} admin."}

    def _refuse_oneself(self, name: str, what: str) -> None:
        if name == self.me.name:
            raise PasswordRefused(f"You cannot {what}: ask another admin.")

    def _end_sessions(self, name: str) -> Any:
        """End a user's sessions now. Return the hub's user; None if the user never logged in."""
        user = self.find_user(name)
        if user is not None:
            sessions.tie(user.orm_user, self.accounts.users().get(name))
        return user

    async def _list(self, **words: Any) -> None:
        people = sorted(self.accounts.users().items())
        await self.show(people=people, me=self.me, **words)


async def stop_servers(handler: Any, user: Any) -> None:
    """Stop a user's notebook servers. The next call stops one that is just starting or stopping."""
    for name, spawner in list(user.spawners.items()):
        if not spawner.active or spawner.pending:
            continue
        try:
            await handler.stop_single_user(user, name)
        except Exception:
            handler.log.exception(
                "The notebook server of %s, who was removed, could not be stopped", user.name
            )


class TokensOfUser(UserTokenListAPIHandler):
    """JupyterHub's handler, with limits. Unlike there, a password in the body does not authenticate."""

    async def post(self, user_name: str) -> None:
        """Make a token."""
        if self.current_user is None:
            raise HTTPError(403, "Make tokens on the hub's page Token, or with a token that has the scope.")
        body: Any = self.get_json_body()
        note = body.get("note") if isinstance(body, dict) else None
        if note is not None and not (isinstance(note, str) and len(note) <= LONGEST_NOTE):
            raise HTTPError(400, f"A token's note is a text of at most {LONGEST_NOTE} characters.")
        user: Any = self.find_user(user_name)
        if user is not None and self.get_scope_filter("tokens")(user, kind="user"):
            _check_room(user)
        await super().post(user_name)


def _check_room(user: Any) -> None:
    """Raise HTTPError if a user has too many tokens. Those that browsers get from services do not count:
    they expire."""
    if sum(token.client_id == _OWN_CLIENT for token in user.api_tokens) >= MOST_TOKENS:
        raise HTTPError(
            409,
            f"{user.name} has {MOST_TOKENS} tokens, which is the limit. "
            "Revoke tokens that nobody needs on the hub's page Token.",
        )


HANDLERS = [
    ("/password", PasswordPage),
    ("/people", PeoplePage),
    (r"/api/users/([^/]+)/tokens", TokensOfUser),
]
