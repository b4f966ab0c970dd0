"""`python -m minicluster_spawner.container`: the first process of a notebook server's container.

It reads the environment from a Docker secret, so that no service's specification has a token. Then it
prepares the home, and execs the server.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from minicluster_spawner.homes import examples_dir, make_home, make_user_site

SECRETS = "/run/secrets"
SECRET_FILE = "server.json"  # noqa: S105 - a file's name
HOME_EXPECTED = "MINICLUSTER_HOME_EXPECTED"
HOME_LOST, HOME_UNUSABLE = 81, 82
"""Exit codes of this process; the spawner explains them to the user."""

OOM_SCORE = "500"
"""oom_score_adj, at most 1000; the platform's processes have 0."""
_MARK = Path(".minicluster", "home")


def read_environment(secret: Path) -> dict[str, str]:
    """Return the environment that the hub gave this server."""
    return dict(json.loads(secret.read_text())["env"])


def prepare_home(home: Path, *, expected: bool) -> int:
    """Prepare the home; return 0, or the exit code if it cannot be used.

    expected: whether the user already had a home: then an empty home means that the home is lost.
    """
    mark = home / _MARK
    if expected and not mark.exists():
        print(f"minicluster: {home} is not the home that was here before: it is empty", file=sys.stderr)  # noqa: T201
        return HOME_LOST
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        print(f"minicluster: {home} cannot be written to: {error}", file=sys.stderr)  # noqa: T201
        # A full home is usable, so that its user can free space.
        return 0 if mark.exists() or os.access(home, os.W_OK) else HOME_UNUSABLE
    try:
        make_home(home, examples_dir())
        make_user_site(home)
    except OSError as error:
        print(f"minicluster: the home has no new examples: {error}", file=sys.stderr)  # noqa: T201
    return 0


def offer_to_oom_killer() -> None:
    """Make the kernel end servers, not the platform, when the machine runs out of memory."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)


def become_server(environment: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Replace this process by the notebook server."""
    command = [sys.executable, "-P", "-s", "-m", "minicluster_spawner.server", *arguments]
    os.execve(command[0], command, dict(environment))  # noqa: S606 - no shell is wanted


def main() -> int:
    environment = read_environment(Path(SECRETS, SECRET_FILE))
    expected = bool(environment.pop(HOME_EXPECTED, ""))
    home = Path(environment.get("HOME") or Path.home())
    os.umask(0o077)
    offer_to_oom_killer()
    if code := prepare_home(home, expected=expected):
        return code
    os.chdir(home)
    become_server({**os.environ, **environment}, sys.argv[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
