"""The command line: up, down, upgrade, status, doctor, users, simulate; `run`: the cluster's services."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from minicluster_hub.cluster.commands.option_values import (
    address,
    domain,
    endpoint,
    memory,
    network,
    port,
    service_option,
    size,
    text_of,
    url_of,
    without_password,
)
from minicluster_hub.cluster.plan.policy_container import policies

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
    _images(command("upgrade", "change to other images; data and choices are kept"))
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
    if given.command == "up":
        _check_up(parser, given)
    return given


def _check_up(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if bool(given.tls_cert) != bool(given.tls_key):
        parser.error("--tls-cert and --tls-key belong together")
    if given.server_gpus is not None and given.server_gpus < 0:
        parser.error(f"--server-gpus {given.server_gpus}: a number from 0 on")


def _up(parser: argparse.ArgumentParser) -> None:
    _address(parser)
    _images(parser)
    _servers(parser)
    _limits(parser)
    _network(parser)
    _job_service(parser)
    _managers(parser)


def _address(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--port", type=port, help="where browsers come in on the first machine (443)")
    add("--name", dest="names", action="append", metavar="HOST", help="how browsers call it; can be repeated")
    add(
        "--domain",
        type=domain,
        metavar="HOST",
        help="the hub's name; each user's server gets one below it, so that no user's page acts as another "
        "user (needs DNS and a certificate for HOST and *.HOST); none: all share one address",
    )
    tls = parser.add_mutually_exclusive_group()
    tls.add_argument(
        "--tls-cert", type=text_of, metavar="FILE", help="the lab's certificate with its chain (PEM)"
    )
    tls.add_argument("--self-made", action="store_true", help="back to a certificate of our own making")
    tls.add_argument("--http", action="store_true", help="no TLS: passwords can be read on the way")
    add("--tls-key", type=text_of, metavar="FILE", help="the certificate's key (PEM, without a password)")


def _images(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--hub-image", metavar="REF", help="the platform's image (the one that runs this command)")
    add(
        "--notebook-image",
        metavar="REF",
        help="the image of notebooks and jobs (the one of the same release)",
    )
    add("--registry-image", metavar="REF", help="the registry's image (docker.io/library/registry:3)")


def _servers(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--shared-homes", metavar="SERVER:/PATH[,OPTION...]", help="homes on NFS, not on each node's disk")
    add(
        "--server-gpus", type=int, metavar="N", help="most GPUs of one notebook server (0: they are for jobs)"
    )
    add(
        "--server-mount",
        dest="server_mounts",
        action="append",
        metavar="SOURCE[:ro]",
        help="a folder of the nodes, or a volume, that your --config has servers mount; {username} stands for"
        " one part of a path; can be repeated",
    )


def _limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--data-cache",
        dest="data_cache_bytes",
        type=size,
        metavar="SIZE",
        help="most that each node's cache of data sets holds, like 200g; 0: what its disk has, but for 5 %%",
    )
    add(
        "--disk-reserve",
        dest="disk_reserve_bytes",
        type=size,
        metavar="SIZE",
        help="of each node's disk, like 20g: if less is left, the job or notebook server that fills it is "
        "ended; 0: 5 %% of the disk, at least 1g and at most 10g",
    )
    add(
        "--platform-memory",
        dest="platform_memory_bytes",
        type=memory,
        metavar="SIZE",
        help="most memory of the hub, and of the job service, each (2g); what needs more is started again",
    )


def _network(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--tenants-reach",
        type=endpoint,
        action="append",
        metavar="ADDRESS:PORT",
        help="a port of a node that users' containers may reach; can be repeated",
    )
    add(
        "--tenants-deny",
        type=network,
        action="append",
        metavar="NETWORK",
        help="a network, like 10.0.0.0/8, that users' containers do not reach; can be repeated",
    )
    add(
        "--tenants-dns",
        type=address,
        action="append",
        metavar="ADDRESS",
        help="a name server that users' containers ask, where nodes have systemd-resolved; can be repeated",
    )


def _job_service(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--policies",
        type=policies,
        metavar="DIR",
        help="folder of the lab's own scheduling policies, NAME.py each, for a container of their own",
    )
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
        "--service-option",
        dest="service_options",
        action="append",
        type=service_option,
        metavar="OPTION",
        help="a further option of the job service, like --service-option=--MiniclusterHub.keep_warm_s=600",
    )


def _managers(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--dedicated-managers",
        action=argparse.BooleanOptionalAction,
        help="managers run the cluster's own services only, no jobs and no notebook servers",
    )
    add(
        "--advertise-addr", metavar="ADDRESS", help="this machine's address among its nodes (for a new Swarm)"
    )
    add(
        "--upstream",
        metavar="URL",
        help="what the cache fetches from (the notebook image's registry); or none",
    )
    add(
        "--config",
        type=text_of,
        metavar="FILE",
        help="a jupyterhub_config.py of the lab's; - reads it from stdin",
    )
    add(
        "--shared-data",
        metavar="PATH",
        help="a folder that all managers share, for the platform's data: any one of three may die then "
        "(needs --db-url-file)",
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
