"""The command line: up, down, upgrade, status, doctor, users, simulate; `run`: the cluster's services."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from minicluster_hub.cluster.plan.choices import Choices
from minicluster_hub.cluster.plan.option_values import text_of, url_of, without_password

_IMAGE = "docker run --rm -v /var/run/docker.sock:/var/run/docker.sock IMAGE"
_EPILOG = f"""The first machine of a new cluster: {_IMAGE} up
It prints the URL, the first admin's password, and the command that makes another machine a node."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the arguments; on a wrong one, say which and exit with code 2."""
    parser = argparse.ArgumentParser(
        prog="minicluster",
        description="A few machines as one notebook: a cluster out of Docker engines.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, about: str, **more: Any) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", **more)

    _up(command("up", "make the cluster, or what is missing of it; change what options say"))
    upgrade = command("upgrade", "change to other images; data and choices are kept")
    _add(upgrade, "hub_image", "notebook_image", "registry_image")
    _down(command("down", "end servers, jobs and the cluster's own services; data is kept"))
    command("status", "nodes, services, images and jobs")
    doctor = command("doctor", "look for what is wrong, with a sentence of remedy for each")
    doctor.add_argument("--json", action="store_true", help="for another program")
    passwd = command("passwd", "give a user a new password, and print it")
    adduser = command("adduser", "make a user, and print the password")
    rmuser = command("rmuser", "let a user in no more; home and jobs are kept")
    for one in (passwd, adduser, rmuser):
        one.add_argument("user", metavar="NAME")
    adduser.add_argument("--admin", action="store_true", help="may manage users, and see and stop all jobs")
    command("publisher", "print who may publish images in the cluster's registry, and how")
    command("simulate", "what other scheduling would do with a trace's jobs", add_help=False)
    command("policy", "show what orders the jobs; activate another policy", add_help=False)
    command("run", "what the cluster's own services call", add_help=False)
    given, given.rest = parser.parse_known_args(arguments)
    if given.rest and given.command != "run":
        parser.error(f"unknown: {' '.join(given.rest)}; see {given.command} --help")
    if given.command == "up" and bool(given.tls_cert) != bool(given.tls_key):
        parser.error("--tls-cert and --tls-key belong together")
    return given


def _add(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options of these choices, or of all."""
    for flag, option in Choices.options(*names).items():
        parser.add_argument(flag, **option)


def _up(parser: argparse.ArgumentParser) -> None:
    """Add the choices, and what is kept as a secret or only for this once."""
    _add(parser)
    add = parser.add_argument
    tls = parser.add_mutually_exclusive_group()
    tls.add_argument(
        "--tls-cert", type=text_of, metavar="FILE", help="the lab's certificate with its chain (PEM)"
    )
    tls.add_argument("--self-made", action="store_true", help="back to a certificate of our own making")
    tls.add_argument("--http", action="store_true", help="no TLS: passwords can be read on the way")
    add("--tls-key", type=text_of, metavar="FILE", help="the certificate's key (PEM, without a password)")
    add(
        "--db-url",
        type=without_password,
        metavar="URL",
        help="a database for the job service instead of SQLite; with a password: --db-url-file",
    )
    add(
        "--db-url-file",
        dest="db_url",
        type=url_of,
        metavar="FILE",
        help="a file with the database's URL, which becomes a Docker secret; - reads it from stdin",
    )
    add(
        "--advertise-addr", metavar="ADDRESS", help="this machine's address among its nodes (for a new Swarm)"
    )


def _down(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--data",
        action="store_true",
        help="remove all data too: accounts, jobs, data sets, images and everybody's home",
    )
    add("--leave", action="store_true", help="leave the Swarm as well")
    add("--yes", action="store_true", help="do not ask before data is removed")
