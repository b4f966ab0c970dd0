"""Which Linux user an owner's jobs run as."""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Sequence

from minicluster_hub.engines.slurm.commands import SlurmRefused

_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
FIRST_USER_ID = 1000
"""Ids below are of the system's own users."""


class LinuxUsers:
    """become: as in Commands; without it all jobs run as the service's own user.

    group: whose members' jobs may run; "": of all users of this machine but the system's.
    """

    def __init__(self, become: Sequence[str], group: str = "") -> None:
        self._own = "" if become else pwd.getpwuid(os.getuid()).pw_name
        self._group = group
        self.seen: set[str] = set()
        """The users whose jobs there may be."""

    def of(self, owner: str) -> str:
        """Return the Linux user. Raises SlurmRefused."""
        user = self._own or self._checked(owner)
        self.seen.add(user)
        return user

    @property
    def all_own(self) -> bool:
        """Whether all jobs are of the service's own user."""
        return bool(self._own)

    def _checked(self, owner: str) -> str:
        if not _NAME.fullmatch(owner):
            raise SlurmRefused(f"{owner[:40]!r} is no name of a Linux user, and jobs run as their users")
        try:
            found = pwd.getpwnam(owner)
        except KeyError:
            raise SlurmRefused(f"this machine has no Linux user {owner}: ask your admin for one") from None
        if found.pw_uid < FIRST_USER_ID:
            raise SlurmRefused(f"{owner} is a user of the system, whose jobs do not run here")
        if self._group and not self._is_member(found):
            raise SlurmRefused(f"{owner} is not in the Linux group {self._group}: ask your admin")
        return owner

    def _is_member(self, user: pwd.struct_passwd) -> bool:
        try:
            group = grp.getgrnam(self._group)
        except KeyError:
            return False
        return user.pw_name in group.gr_mem or user.pw_gid == group.gr_gid
