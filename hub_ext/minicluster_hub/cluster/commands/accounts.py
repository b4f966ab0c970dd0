"""Changes accounts of the built-in login. Runs in the hub's container, which has the password file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from minicluster_hub.cluster.containers import run_in_hub
from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.errors import ClusterError
from minicluster_hub.login.accounts_file import FIRST_USER, PasswordError, PasswordFile


def change(data_dir: Path, words: Sequence[str]) -> int:
    """Do `first`, `told`, `add NAME [--admin]`, `reset NAME` or `remove NAME`; print a new password."""
    users = PasswordFile(data_dir / "passwords.json")
    unseen = data_dir / "first-password-untold"
    # `up` uses these two: "first" makes the first password, "told" notes that a person has seen it.
    do: dict[str, Callable[[], str | None]] = {
        "first": lambda: _first(users, unseen),
        "told": lambda: unseen.unlink(missing_ok=True),
        "add": lambda: users.add(words[1], admin="--admin" in words),
        "reset": lambda: users.reset(words[1]),
        "remove": lambda: users.remove(words[1]),
    }
    try:
        password = do[words[0]]()
    except (PasswordError, OSError) as error:
        sys.stdout.write(str(error))
        return 1
    sys.stdout.write(password or "")
    return 0


def _first(users: PasswordFile, unseen: Path) -> str | None:
    """Make the first admin; or, if nobody has seen the first password yet, a new one."""
    if not any(entry.admin for entry in users.users().values()):
        unseen.touch()
        return users.add(FIRST_USER, admin=True)
    return users.reset(FIRST_USER) if unseen.exists() else None


def request(daemon: Daemon, *words: str) -> str:
    """Change an account in the hub's container; return the new password. Raises ClusterError."""
    code, output = run_in_hub(daemon, ["account", *words])
    if code:
        raise ClusterError(output)
    return output
