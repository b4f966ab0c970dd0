"""Which Linux user an owner's jobs run as."""

from __future__ import annotations

import grp
import os
import pwd
import re
import time
from collections.abc import Callable, Sequence

from minicluster_hub.engines.slurm.commands import SlurmRefused

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}")
FIRST_USER_ID = 1000
"""Ids below are of the system's own users."""
_KNOWN_FOR_S, _REFUSED_FOR_S = 300.0, 10.0
"""How long an answer holds: the directory of a site's users may be slow, and is asked at each tick."""


class LinuxUsers:
    """become: as in Commands; without it all jobs run as the service's own user.

    group: whose members' jobs may run; "": of all users of this machine but the system's.
    """

    def __init__(
        self, become: Sequence[str], group: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._own = "" if become else pwd.getpwuid(os.getuid()).pw_name
        self._group = group
        self._clock = clock
        self._answers: dict[str, tuple[str, float]] = {}
        """By owner: why its jobs do not run, "" if they do; and until when this holds."""
        self.seen: set[str] = set()
        """The users whose jobs there may be."""

    def of(self, owner: str) -> str:
        """Return the Linux user. Raises SlurmRefused."""
        if self._own:
            return self._own
        why, until = self._answers.get(owner, ("", 0.0))
        if until <= self._clock():
            why = self._why_not(owner)
            self._answers[owner] = why, self._clock() + (_REFUSED_FOR_S if why else _KNOWN_FOR_S)
        if why:
            raise SlurmRefused(why)
        self.seen.add(owner)
        return owner

    @property
    def own(self) -> str:
        """The service's own user, if all jobs are of that; else ""."""
        return self._own

    def _why_not(self, owner: str) -> str:
        if not _NAME.fullmatch(owner):
            return f"{owner[:40]!r} is no name of a Linux user, and jobs run as their users"
        try:
            found = pwd.getpwnam(owner)
        except KeyError:
            return f"this machine has no Linux user {owner}: ask your admin for one"
        if found.pw_uid < FIRST_USER_ID:
            return f"{owner} is a user of the system, whose jobs do not run here"
        if self._group and not self._is_member(found):
            return f"{owner} is not in the Linux group {self._group}: ask your admin"
        return ""

    def _is_member(self, user: pwd.struct_passwd) -> bool:
        try:
            group = grp.getgrnam(self._group)
        except KeyError:
            return False
        return user.pw_name in group.gr_mem or user.pw_gid == group.gr_gid
