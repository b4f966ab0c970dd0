"""The messages of `./run`."""

from __future__ import annotations

import sys

from minicluster_hub.login.accounts_file import FIRST_USER
from minicluster_hub.settings import Settings

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def echo(text: str = "") -> None:
    """Print and flush, so that a pipe gets the text at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """Print an error to stderr."""
    sys.stderr.write(f"minicluster: {text}\n")
    sys.stderr.flush()


def welcome(settings: Settings, password: str | None) -> str:
    """Return the lines after a start. password: None unless this start made it."""
    unchanged = "as before; a new one: ./run --reset-password"
    lines = [
        f"Minicluster is ready: {settings.browsers_url}",
        "",
        f"  user      {FIRST_USER}",
        f"  password  {password + '   (shown only now)' if password else unchanged}",
        f"  data      {settings.data_dir}   (log: hub/hub.log)",
        f"  nodes     {settings.nodes}, virtual, all on this machine",
        "",
        "  Next: open the URL, log in, open quickstart.ipynb and run its cells.",
        "  Another user: ./run --add-user NAME",
        "  Ctrl-C ends the hub, the notebook servers and all jobs.",
    ]
    if settings.host not in _LOOPBACK:
        lines[1] = (
            "  WARNING: the network reaches the hub without TLS, so others can read passwords."
            " Put a TLS proxy in front."
        )
    return "\n".join(lines)


def new_password(name: str, password: str) -> str:
    """Return the answer to --add-user and --reset-password."""
    return f"user      {name}\npassword  {password}   (shown only now)"


def removed(name: str) -> str:
    """Return the answer to --remove-user."""
    return f"{name} can no longer log in. The home and the jobs stay; an admin can stop the jobs."
