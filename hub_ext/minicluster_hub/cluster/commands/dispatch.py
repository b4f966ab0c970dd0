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


def do(given: argparse.Namespace) -> int:
    """Do a command; return the exit code."""
    try:
        daemon = Daemon.connect()
        if given.command != "doctor":
            check_engine(daemon)
        if given.command in _ON_A_CLUSTER and not swarm.is_manager(daemon):
            raise ClusterMissing(
                "There is no cluster here: `up` makes one. For the cluster of another machine, give the"
                " command on its first machine."
            )
        return _COMMANDS[given.command](daemon, given)
    except ClusterError as error:
        complain(str(error))
    except DockerError as error:
        complain(f"The Docker Engine refuses: {error.message}\nRun doctor to find the cause.")
    except KeyboardInterrupt:
        complain("stopped; give the same command again to continue")
    return 1


def _doctor(daemon: Daemon, given: argparse.Namespace) -> int:
    from minicluster_hub.cluster.doctor.command import doctor

    return doctor(daemon, json=given.json)


def _passwd(daemon: Daemon, given: argparse.Namespace) -> int:
    echo(new_password(given.user, accounts.request(daemon, "reset", given.user)))
    return 0


def _adduser(daemon: Daemon, given: argparse.Namespace) -> int:
    more = ["--admin"] if given.admin else []
    echo(new_password(given.user, accounts.request(daemon, "add", given.user, *more)))
    return 0


def _rmuser(daemon: Daemon, given: argparse.Namespace) -> int:
    accounts.request(daemon, "remove", given.user)
    echo(removed(given.user))
    return 0


def _publisher(daemon: Daemon, given: argparse.Namespace) -> int:
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
