"""Accounts of the built-in login, changed inside the hub's container, where the password file lies."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.errors import ClusterError, ClusterMissing
from minicluster_hub.cluster.plan import record, shared_folder
from minicluster_hub.cluster.plan.plan import service_name
from minicluster_hub.engines.swarm.docker import DockerConflict, DockerMissing
from minicluster_hub.engines.swarm.names import NAME_LABEL
from minicluster_hub.login.accounts_file import FIRST_USER, PasswordError, PasswordFile

_PROGRAM = ["python", "-P", "-m", "minicluster_hub.cluster", "run"]
_LOOK_S, _LIMIT_S = 0.3, 60.0


def change(data_dir: Path, words: Sequence[str]) -> int:
    """Do `first`, `told`, `add NAME [--admin]`, `reset NAME` or `remove NAME`; print a new password."""
    users = PasswordFile(data_dir / "passwords.json")
    untold = data_dir / "first-password-untold"
    do: dict[str, Callable[[], str | None]] = {
        "first": lambda: first(users, untold),
        "told": lambda: untold.unlink(missing_ok=True),
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


def first(users: PasswordFile, untold: Path) -> str | None:
    """Make the first admin, or a new password for the one whose password was never shown."""
    if not any(entry.admin for entry in users.users().values()):
        untold.touch()
        return users.add(FIRST_USER, admin=True)
    return users.reset(FIRST_USER) if untold.exists() else None


def ask(daemon: Daemon, words: Sequence[str]) -> str:
    """Have the hub's container change an account; return the password that it made. Raises ClusterError."""
    code, said = in_hub(daemon, ["account", *words])
    if code:
        raise ClusterError(said)
    return said


def in_hub(daemon: Daemon, words: Sequence[str]) -> tuple[int, str]:
    """Run one of our commands where the hub's data is: in its container, or beside it."""
    try:
        return run_in(daemon, "hub", [*_PROGRAM, *words])
    except ClusterMissing:
        known = record.load(daemon)
        if known is None or not known.choices.shared_data:
            raise
        # With shared data it may run on another manager, whose containers cannot be entered from here.
        return shared_folder.run_hub(daemon, known.images.hub, known.choices.shared_data, list(words))


def run_in(daemon: Daemon, role: str, command: list[str]) -> tuple[int, str]:
    """Run a command in the container of a platform service on this machine; return its exit code and output.

    One that ends just then has not run it: the next one does. Raises ClusterMissing where there is none.
    """
    ended, deadline = False, time.monotonic() + _LIMIT_S
    while True:
        try:
            return daemon.run_in(_container_of(daemon, role), command)
        except (DockerConflict, DockerMissing, ClusterMissing) as error:
            ended = ended or not isinstance(error, ClusterMissing)
            if not ended or time.monotonic() > deadline:
                raise
        time.sleep(_LOOK_S)


def _container_of(daemon: Daemon, role: str) -> str:
    """Return the running container of a platform service on this machine. Raises ClusterMissing."""
    found: list[Mapping[str, str]] = daemon.call(
        "containers", filters={"label": f"{NAME_LABEL}={service_name(role)}", "status": "running"}
    )
    if not found:
        raise ClusterMissing(
            f"The service {service_name(role)} does not run on this machine. See status; `up` makes it."
        )
    return str(found[0]["Id"])
