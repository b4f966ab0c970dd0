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
    """Read the arguments. If one is wrong, print which and exit with code 2."""
    parser = argparse.ArgumentParser(
        prog="minicluster",
        description="Make a few machines one notebook: a cluster of Docker engines.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, about: str, **more: Any) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", **more)

    _up(command("up", "make the cluster, or its missing parts; change it as the options say"))
    upgrade = command("upgrade", "change to other images; data and options stay")
    _add(upgrade, "hub_image", "notebook_image", "registry_image")
    _down(command("down", "end servers, jobs and the cluster's own services; data stays"))
    command("status", "nodes, services, images and jobs")
    doctor = command("doctor", "find problems, with a remedy for each")
    doctor.add_argument("--json", action="store_true", help="print JSON, for another program")
    passwd = command("passwd", "give a user a new password, and print it")
    adduser = command("adduser", "add a user, and print the password")
    rmuser = command("rmuser", "remove a user's login; home and jobs stay")
    for one in (passwd, adduser, rmuser):
        one.add_argument("user", metavar="NAME")
    adduser.add_argument("--admin", action="store_true", help="may manage users, and see and stop all jobs")
    command("publisher", "print the login for publishing images in the cluster's registry")
    command("simulate", "simulate a trace's jobs under other policies", add_help=False)
    command("policy", "show the active policy; activate another one", add_help=False)
    command("run", "start one of the cluster's services; they call it", add_help=False)
    given, given.rest = parser.parse_known_args(arguments)
    if given.rest and given.command != "run":
        parser.error(f"unknown: {' '.join(given.rest)}; see {given.command} --help")
    if given.command == "up" and bool(given.tls_cert) != bool(given.tls_key):
        parser.error("--tls-cert and --tls-key belong together")
    return given


def _add(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options of these choices, or of all choices."""
    for flag, option in Choices.options(*names).items():
        parser.add_argument(flag, **option)


def _up(parser: argparse.ArgumentParser) -> None:
    """Add the options of stored choices, then those that become secrets or are not stored."""
    _add(parser)
    add = parser.add_argument
    tls = parser.add_mutually_exclusive_group()
    tls.add_argument(
        "--tls-cert", type=text_of, metavar="FILE", help="the lab's certificate with its chain (PEM)"
    )
    tls.add_argument("--self-made", action="store_true", help="go back to a self-signed certificate")
    tls.add_argument("--http", action="store_true", help="no TLS: others on the network can read passwords")
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
