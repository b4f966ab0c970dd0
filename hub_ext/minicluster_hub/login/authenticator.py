"""JupyterHub's login against the password file: whoever is not in the file stays out."""

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
    """Users and passwords from one file, made by `./run --add-user` and the page People."""

    passwords_file = Unicode(
        "passwords.json", help="Path of the file with the users' password hashes; changes count at once."
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
        """A look costs one stat of the file, so that a changed password counts within a second."""
        return 1

    @default("auth_refresh_strict")
    def _auth_refresh_strict_default(self) -> bool:
        return True

    def get_handlers(self, app: Any) -> list[tuple[str, Any]]:
        """Add the pages Password and People to the hub's own, and put bounds on tokens."""
        self.origins = OriginFinder(getattr(app.proxy, "api_url", ""), app.trusted_downstream_ips)
        app.template_vars["account_pages"] = True
        return [*super().get_handlers(app), *HANDLERS]

    async def authenticate(self, handler: Any, data: dict[str, str] | None) -> Any:
        """Return the user as a dict, or None for a wrong name or password (the same answer for both)."""
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
        return _told(name, entry)

    async def check(self, handler: Any, name: str, password: str) -> Account | None:
        """Return the user's entry if the password is right. Raises LoginRefused."""
        origin = await self.origins.of(handler, name) if self.origins else Origin("")
        return await self.gate.check(name, password, origin)

    def check_allowed(self, username: str, authentication: dict[str, Any] | None = None) -> bool:
        """Allow whom the file holds, and nobody else."""
        return username in self.passwords.users()

    def add_user(self, user: Any) -> None:
        """End what began with another password: at the hub's start, and before a first session."""
        super().add_user(user)
        sessions.tie(getattr(user, "orm_user", user), self.passwords.users().get(user.name))

    def delete_user(self, user: Any) -> None:
        """Close the account of a user whom an admin deletes on the hub's own page."""
        super().delete_user(user)
        if user.name in self.passwords.users():
            try:
                self.passwords.remove(user.name)
            except LastAdmin as error:
                raise HTTPError(400, str(error)) from None

    async def refresh_user(self, user: Any, handler: Any = None) -> Any:
        """Send a user whose account or password is another one back to the login page."""
        account = self.passwords.users().get(user.name)
        by_token = handler.get_token() if getattr(handler, "_token_authenticated", False) else None
        current = sessions.tie(user.orm_user, account)
        if account is None:
            self._stop_servers(handler, user)
            return False
        if not current and not sessions.is_kept(by_token):
            return False
        told = _told(user.name, account)
        same = user.admin == account.admin and [group.name for group in user.groups] == told["groups"]
        return True if same else told

    def _stop_servers(self, handler: Any, user: Any) -> None:
        """Not awaited: it may be the server that asks, and it has to hear an answer to end."""
        if handler is not None and user.active:
            stopping = asyncio.ensure_future(stop_servers(handler, user))
            self.stopping.add(stopping)
            stopping.add_done_callback(self.stopping.discard)

    def pre_spawn_start(self, user: Any, spawner: Any) -> None:
        """Remember the token that the notebook server gets."""
        sessions.mark_server_token(user.orm_user, spawner.name, spawner.api_token)

    def post_spawn_stop(self, user: Any, spawner: Any) -> None:
        """Let a notebook server's token end with it."""
        sessions.end_server_token(user.orm_user, spawner.name)


def _told(name: str, account: Account) -> dict[str, Any]:
    return {"name": name, "admin": account.admin, "groups": [ADMIN_GROUP] if account.admin else []}
