"""JupyterHub's authenticator for the password file: only users in the file can log in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from jupyterhub.auth import Authenticator
from tornado.web import HTTPError
from traitlets import Instance, Set, Unicode, default

from minicluster_hub.login import sessions
from minicluster_hub.login.accounts_file import ADMIN_GROUP, Account, LastAdmin, PasswordFile
from minicluster_hub.login.origin import Origin, OriginFinder, remember_device
from minicluster_hub.login.pages import HANDLERS, stop_servers
from minicluster_hub.login.password_check import LoginGate, LoginRefused


class PasswordAuthenticator(Authenticator):
    """Users and passwords in one file, which `./run --add-user` and the page People change."""

    passwords_file = Unicode(
        "passwords.json", help="Path of the file with the users' password hashes; changes apply at once."
    ).tag(config=True)

    passwords = Instance(PasswordFile)
    gate = Instance(LoginGate)
    origins: OriginFinder | None = None
    stopping = Set()

    @default("passwords")
    def _passwords_default(self) -> PasswordFile:
        return PasswordFile(Path(self.passwords_file))

    @default("gate")
    def _gate_default(self) -> LoginGate:
        return LoginGate(self.passwords)

    @default("any_allow_config")
    def _any_allow_config_default(self) -> bool:
        return True

    @default("manage_groups")
    def _manage_groups_default(self) -> bool:
        return True

    @default("auth_refresh_age")
    def _auth_refresh_age_default(self) -> int:
        """Notice a changed password within a second: a check costs one stat of the file."""
        return 1

    @default("auth_refresh_strict")
    def _auth_refresh_strict_default(self) -> bool:
        return True

    def get_handlers(self, app: Any) -> list[tuple[str, Any]]:
        """Add the pages Password and People to the hub's own, and limit users' tokens."""
        self.origins = OriginFinder(getattr(app.proxy, "api_url", ""), app.trusted_downstream_ips)
        app.template_vars["account_pages"] = True
        return [*super().get_handlers(app), *HANDLERS]

    async def authenticate(self, handler: Any, data: dict[str, str] | None) -> Any:
        """Return the user as a dict; None if the name or the password is wrong."""
        name = self.normalize_username((data or {}).get("username", ""))
        try:
            entry = await self.check(handler, name, (data or {}).get("password", ""))
        except LoginRefused as error:
            raise HTTPError(429, str(error)) from None
        if entry is None:
            return None
        if (user := handler.find_user(name)) is not None:
            sessions.tie(user.orm_user, entry)
        remember_device(handler, name)
        return _model(name, entry)

    async def check(self, handler: Any, name: str, password: str) -> Account | None:
        """Return the user's entry if the password is right. Raises LoginRefused."""
        origin = await self.origins.of(handler, name) if self.origins else Origin("")
        return await self.gate.check(name, password, origin)

    def check_allowed(self, username: str, authentication: dict[str, Any] | None = None) -> bool:
        """Return whether the file has the user."""
        return username in self.passwords.users()

    def add_user(self, user: Any) -> None:
        """End sessions of an earlier password; called at the hub's start, and before a first session."""
        super().add_user(user)
        sessions.tie(getattr(user, "orm_user", user), self.passwords.users().get(user.name))

    def delete_user(self, user: Any) -> None:
        """Remove the account, too, when an admin deletes a user on the hub's own page."""
        super().delete_user(user)
        if user.name in self.passwords.users():
            try:
                self.passwords.remove(user.name)
            except LastAdmin as error:
                raise HTTPError(400, str(error)) from None

    async def refresh_user(self, user: Any, handler: Any = None) -> Any:
        """Send a user back to the login page if the account or the password has changed."""
        account = self.passwords.users().get(user.name)
        by_token = handler.get_token() if getattr(handler, "_token_authenticated", False) else None
        current = sessions.tie(user.orm_user, account)
        if account is None:
            self._stop_servers(handler, user)
            return False
        if not current and not sessions.is_kept(by_token):
            return False
        model = _model(user.name, account)
        same = user.admin == account.admin and [group.name for group in user.groups] == model["groups"]
        return True if same else model

    def _stop_servers(self, handler: Any, user: Any) -> None:
        """Stop servers in the background: the caller may be such a server, and it waits for its answer."""
        if handler is not None and user.active:
            stopping = asyncio.ensure_future(stop_servers(handler, user))
            self.stopping.add(stopping)
            stopping.add_done_callback(self.stopping.discard)

    def pre_spawn_start(self, user: Any, spawner: Any) -> None:
        """Mark the token of the notebook server."""
        sessions.mark_server_token(user.orm_user, spawner.name, spawner.api_token)

    def post_spawn_stop(self, user: Any, spawner: Any) -> None:
        """Delete the token of a notebook server that stopped."""
        sessions.end_server_token(user.orm_user, spawner.name)


def _model(name: str, account: Account) -> dict[str, Any]:
    """Return the user's model, as JupyterHub's authenticators do."""
    return {"name": name, "admin": account.admin, "groups": [ADMIN_GROUP] if account.admin else []}
