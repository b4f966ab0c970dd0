"""What the hub serves beside its own: the pages Password and (for admins) People, and a bound on tokens."""

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
"""JupyterHub's own table says 1023 characters, which SQLite does not look at."""
_OWN_CLIENT = "jupyterhub"
FIELDS = ("present", "new", "again")


class _AccountPage(BaseHandler):
    """What both pages share. Only a browser's cookie counts here, no token."""

    template = ""

    @property
    def me(self) -> Any:
        """The hub's user who asks; `authenticated` has seen to it that there is one."""
        return self.current_user

    @property
    def login(self) -> Any:
        """Our authenticator: it brought these pages."""
        return self.authenticator

    @property
    def accounts(self) -> PasswordFile:
        return self.login.passwords

    async def show(self, *, status: int = 200, **words: Any) -> None:
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        self.finish(await self.render_template(self.template, **words))


class PasswordPage(_AccountPage):
    """A user's own password: the present one opens it, a new one ends all other sessions."""

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
            raise PasswordRefused("The new password was typed in two ways: type the same in both fields.")
        check_new_password(name, new)
        if await self.login.check(self, name, present) is None:
            raise PasswordRefused("The present password is wrong.")
        await asyncio.to_thread(self.accounts.set_password, name, new)
        sessions.tie(self.me.orm_user, self.accounts.users().get(name))
        self.set_login_cookie(self.me)

    async def _form(self, **words: Any) -> None:
        await self.show(**{"shortest": SHORTEST_PASSWORD, "longest": LONGEST_PASSWORD, **words})


class PeoplePage(_AccountPage):
    """Who may come in: admins add people, give new passwords, remove people and make admins."""

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
        # The whole scope: who manages one group's users must not give passwords to all.
        if not self.has_scope("admin:users"):
            raise HTTPError(403, "Only who may manage all users sees this page.")

    def _check_rights(self, name: str) -> None:
        account = self.accounts.users().get(name)
        if (self._asks_admin or (account and account.admin)) and not self.me.admin:
            raise HTTPError(403, "Only an admin may change or make an admin.")

    @property
    def _asks_admin(self) -> bool:
        return self.get_body_argument("admin", "") == "yes"

    async def _add(self, name: str) -> dict[str, Any]:
        password = await asyncio.to_thread(self.accounts.add, name, admin=self._asks_admin)
        return {"whose": name, "password": password, "done": f"{name} may come in."}

    async def _reset(self, name: str) -> dict[str, Any]:
        password = await asyncio.to_thread(self.accounts.reset, name)
        self._end_sessions(name)
        if name == self.me.name:
            self.set_login_cookie(self.me)
        return {"whose": name, "password": password, "done": f"{name} has a new password."}

    async def _remove(self, name: str) -> dict[str, Any]:
        self._refuse_oneself(name, "remove")
        await asyncio.to_thread(self.accounts.remove, name)
        user = self._end_sessions(name)
        if user is not None:
            await stop_servers(self, user)
        return {"done": f"{name} may no longer come in. Home and jobs are kept."}

    async def _admin(self, name: str) -> dict[str, Any]:
        self._refuse_oneself(name, "take the admin's rights from")
        await asyncio.to_thread(self.accounts.set_admin, name, self._asks_admin)
        return {"done": f"{name} is {'an' if self._asks_admin else 'no'} admin."}

    def _refuse_oneself(self, name: str, what: str) -> None:
        if name == self.me.name:
            raise PasswordRefused(f"Nobody can {what} himself: ask another admin.")

    def _end_sessions(self, name: str) -> Any:
        """End a user's sessions now; return the hub's user, None if there was no login yet."""
        user = self.find_user(name)
        if user is not None:
            sessions.tie(user.orm_user, self.accounts.users().get(name))
        return user

    async def _list(self, **words: Any) -> None:
        people = sorted(self.accounts.users().items())
        await self.show(people=people, me=self.me, **words)


async def stop_servers(handler: Any, user: Any) -> None:
    """Stop a user's notebook servers; one that is just starting or stopping is left to the next call."""
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
    """JupyterHub's own, with bounds. A password in the body, which it takes as well, counts for nothing."""

    async def post(self, user_name: str) -> None:
        """Make a token."""
        if self.current_user is None:
            raise HTTPError(403, "Make tokens on the hub's page Token, or with a token that may.")
        body: Any = self.get_json_body()
        note = body.get("note") if isinstance(body, dict) else None
        if note is not None and not (isinstance(note, str) and len(note) <= LONGEST_NOTE):
            raise HTTPError(400, f"A token's note is a text of at most {LONGEST_NOTE} characters.")
        user: Any = self.find_user(user_name)
        if user is not None and self.get_scope_filter("tokens")(user, kind="user"):
            _check_room(user)
        await super().post(user_name)


def _check_room(user: Any) -> None:
    """Count tokens, but for those that browsers get when they visit a service: they expire."""
    if sum(token.client_id == _OWN_CLIENT for token in user.api_tokens) >= MOST_TOKENS:
        raise HTTPError(
            409,
            f"{user.name} has {MOST_TOKENS} tokens, the most that there may be. "
            "Revoke those that nobody needs on the hub's page Token.",
        )


HANDLERS = [
    ("/password", PasswordPage),
    ("/people", PeoplePage),
    (r"/api/users/([^/]+)/tokens", TokensOfUser),
]
"""What the hub serves beside its own."""
