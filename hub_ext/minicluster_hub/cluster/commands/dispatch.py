"""Calls the function of a command, and prints its errors for the administrator."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from minicluster_hub.cluster import swarm
from minicluster_hub.cluster.commands import accounts, down, status, up
from minicluster_hub.cluster.daemon import Daemon, check_engine
from minicluster_hub.cluster.errors import ClusterError, ClusterMissing
from minicluster_hub.cluster.plan import record
from minicluster_hub.cluster.registry import publisher
from minicluster_hub.engines.swarm.docker import DockerError
from minicluster_hub.launch.messages import complain, echo, new_password, removed

_ON_A_CLUSTER = ("upgrade", "passwd", "adduser", "rmuser", "publisher")


def run(arguments: argparse.Namespace) -> int:
    """Run a command; return the exit code."""
    try:
        daemon = Daemon.connect()
        if arguments.command != "doctor":
            check_engine(daemon)
        if arguments.command in _ON_A_CLUSTER and not swarm.is_manager(daemon):
            raise ClusterMissing(
                "There is no cluster here: `up` makes one. For the cluster of another machine, give the"
                " command on its first machine."
            )
        return _COMMANDS[arguments.command](daemon, arguments)
    except ClusterError as error:
        complain(str(error))
    except DockerError as error:
        complain(f"The Docker Engine refuses: {error.message}\nRun doctor to find the cause.")
    except KeyboardInterrupt:
        complain("stopped; give the same command again to continue")
    return 1


def _doctor(daemon: Daemon, arguments: argparse.Namespace) -> int:
    from minicluster_hub.cluster.doctor.command import doctor

    return doctor(daemon, json=arguments.json)


def _passwd(daemon: Daemon, arguments: argparse.Namespace) -> int:
    echo(new_password(arguments.user, accounts.request(daemon, "reset", arguments.user)))
    return 0


def _adduser(daemon: Daemon, arguments: argparse.Namespace) -> int:
    more = ["--admin"] if arguments.admin else []
    echo(new_password(arguments.user, accounts.request(daemon, "add", arguments.user, *more)))
    return 0


def _rmuser(daemon: Daemon, arguments: argparse.Namespace) -> int:
    accounts.request(daemon, "remove", arguments.user)
    echo(removed(arguments.user))
    return 0


def _publisher(daemon: Daemon, arguments: argparse.Namespace) -> int:
    known = record.load(daemon)
    if known is None:
        raise ClusterMissing("There is no cluster here: make one with `up`.")
    login = publisher.login(daemon, known, swarm.this_node(daemon).id)
    echo(f"registry  {publisher.ADDRESS}   (on this machine)")
    echo(f"user      {login['username']}\npassword  {login['password']}")
    return 0


_COMMANDS: Mapping[str, Callable[[Daemon, argparse.Namespace], int]] = {
    "up": up.up,
    "upgrade": up.upgrade,
    "down": down.down,
    "status": status.status,
    "doctor": _doctor,
    "passwd": _passwd,
    "adduser": _adduser,
    "rmuser": _rmuser,
    "publisher": _publisher,
}
