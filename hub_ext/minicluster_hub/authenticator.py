"""JupyterHub's login against the password file: whoever is not in the file stays out."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any

from jupyterhub.auth import Authenticator
from tornado.web import HTTPError
from traitlets import Instance, Unicode, default

from minicluster_hub.login_delay import LoginDelays
from minicluster_hub.passwords import ADMIN_GROUP, PasswordFile


class PasswordAuthenticator(Authenticator):
    """Users and passwords from one file, made by `./run --add-user`."""

    passwords_file = Unicode(
        "passwords.json", help="Path of the file with the users' password hashes; changes count at once."
    ).tag(config=True)

    delays = Instance(LoginDelays, args=())

    @default("any_allow_config")
    def _any_allow_config_default(self) -> bool:
        return True

    @default("manage_groups")
    def _manage_groups_default(self) -> bool:
        return True

    @default("auth_refresh_age")
    def _auth_refresh_age_default(self) -> int:
        return 60

    @default("auth_refresh_strict")
    def _auth_refresh_strict_default(self) -> bool:
        return True

    @property
    def passwords(self) -> PasswordFile:
        return PasswordFile(Path(self.passwords_file))

    async def authenticate(self, handler: Any, data: dict[str, str] | None) -> Any:
        """Return the user as a dict, or None for a wrong name or password (the same answer for both)."""
        name = self.normalize_username((data or {}).get("username", ""))
        if wait_s := self.delays.wait_s(name, time.monotonic()):
            raise HTTPError(
                429, f"Too many wrong passwords for this user name. Try again in {math.ceil(wait_s)} s."
            )
        password = (data or {}).get("password", "")
        entry = await asyncio.to_thread(self.passwords.verify, name, password)
        if entry is None:
            self.delays.failed(name, time.monotonic())
            return None
        self.delays.succeeded(name)
        return self._user(name, entry.admin)

    def check_allowed(self, username: str, authentication: dict[str, Any] | None = None) -> bool:
        """Allow whom the file holds, and nobody else."""
        return username in self.passwords.users()

    async def refresh_user(self, user: Any, handler: Any = None) -> Any:
        """Send a user who was taken out of the file back to the login page."""
        entry = self.passwords.users().get(user.name)
        return self._user(user.name, entry.admin) if entry else False

    def _user(self, name: str, admin: bool) -> dict[str, Any]:
        return {"name": name, "admin": admin, "groups": [ADMIN_GROUP] if admin else []}
