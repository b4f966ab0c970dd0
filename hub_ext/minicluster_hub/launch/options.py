"""The command line of `./run`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minicluster_hub.login.accounts_file import FIRST_USER

_EPILOG = 'The first start creates the user "admin" and prints the password once.'


@dataclass(frozen=True)
class Options:
    """The parsed options. port: None for 8000, or for the demo a free port."""

    data_dir: Path
    host: str
    port: int | None
    domain: str
    nodes: int
    demo: bool
    own_data: bool
    add_user: str | None
    reset_password: str | None
    remove_user: str | None
    policies: Path | None = None
    """The folder of the lab's own policies; None: `policies` in the data folder."""


def parse(arguments: Sequence[str]) -> Options:
    """Read the arguments. If one is wrong, print which and exit with code 2."""
    default_data = tree() / "data"
    parser = _parser(default_data)
    parsed = parser.parse_args(arguments)
    if parsed.nodes < 1 or parsed.nodes > 64:
        parser.error(f"--nodes {parsed.nodes}: take 1 to 64 virtual nodes")
    if parsed.port is not None and not 1 <= parsed.port <= 65535:
        parser.error(f"--port {parsed.port}: a port is a number from 1 to 65535")
    if parsed.policies is not None and not parsed.policies.is_dir():
        parser.error(f"--policies {parsed.policies}: there is no such folder")
    if parsed.domain and parsed.demo:
        parser.error("--domain is for browsers; the demo uses none")
    return Options(
        data_dir=(parsed.data or default_data).expanduser().absolute(),
        host=parsed.host,
        port=parsed.port,
        domain=parsed.domain,
        nodes=parsed.nodes,
        demo=parsed.demo,
        own_data=parsed.data is not None,
        add_user=parsed.add_user,
        reset_password=parsed.reset_password,
        remove_user=parsed.remove_user,
        policies=parsed.policies and parsed.policies.expanduser().absolute(),
    )


def tree() -> Path:
    """The folder of `./run`, where jupyterhub_config.py lies and data/ by default."""
    return Path(os.environ.get("MINICLUSTER_TREE", ".")).absolute()


def _parser(default_data: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./run",
        description="Start Minicluster on this machine: a hub with notebooks that train on several nodes.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help=f"folder of all data ({default_data})")
    add("--port", type=int, help="port for browsers (8000)")
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)")
    add(
        "--domain",
        default="",
        metavar="NAME",
        help="domain of this machine; each user's server gets a subdomain (localhost: to try it)",
    )
    add("--nodes", type=int, default=3, metavar="N", help="virtual nodes of this machine (3)")
    add("--policies", type=Path, metavar="DIR", help="folder of your own scheduling policies (DATA/policies)")
    add("--torch", metavar="SPEC", help="what pip installs as torch (a CPU build where no NVIDIA GPU is)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--demo", action="store_true", help="run the quickstart without a person, then end")
    what.add_argument("--add-user", metavar="NAME", help="make a user and print the password")
    what.add_argument("--remove-user", metavar="NAME", help="remove a user's login; home and jobs stay")
    what.add_argument(
        "--reset-password",
        metavar="NAME",
        nargs="?",
        const=FIRST_USER,
        help=f"print a new password for a user ({FIRST_USER})",
    )
    return parser


if __name__ == "__main__":
    parse(sys.argv[1:])
