"""The cluster's secrets: made in groups that belong together, and never read back.

Docker gives nobody the content of a secret. So the members of a group that depend on each other (a
password and its hash, a certificate and its key) carry the mark of the run that made them; a group that
lacks one, or was made for something else, is made anew as a whole.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.errors import OptionUnusable
from minicluster_hub.cluster.plan.certificates import BROWSER_DAYS, INTERNAL_DAYS, make_ca_and_cert
from minicluster_hub.cluster.plan.drafts import Kept
from minicluster_hub.cluster.registry.config import htpasswd_line
from minicluster_hub.engines.swarm.docker import DockerError
from minicluster_hub.engines.swarm.names import CLUSTER, label_filter, labels

_ROLE = "secret"
_PREFIX = "org.minicluster."
_ITEM, _GROUP, _RUN, _FOR, _UNTIL = (f"{_PREFIX}{name}" for name in ("item", "group", "run", "for", "until"))
_RENEW_S = 30 * 86400.0
READER, PUBLISHER = "reader", "publisher"


@dataclass(frozen=True)
class Group:
    """items: its secrets' names. made_for: what they depend on. days: how long they are good; 0: for ever."""

    name: str
    items: tuple[str, ...]
    make: Callable[[], Mapping[str, str]]
    made_for: str = ""
    days: int = 0

    @property
    def mark(self) -> str:
        return hashlib.sha256(self.made_for.encode()).hexdigest()[:12]


def token(name: str) -> Group:
    """Return the group of one random secret."""
    return Group(name, (name,), lambda: {name: secrets.token_hex(32)})


def registry_passwords() -> Group:
    """Return reader's and publisher's passwords with the file that the registry checks them by."""
    return Group(
        "registry_passwords", ("registry_reader", "registry_publisher", "registry_htpasswd"), _passwords
    )


def registry_certificate(addresses: Sequence[str]) -> Group:
    """Return the certificate that registry and cache show to the relays."""

    def make() -> Mapping[str, str]:
        made = make_ca_and_cert([*addresses, "registry", "cache"], INTERNAL_DAYS)
        return {"registry_ca": made.ca_pem, "registry_cert": made.cert_pem, "registry_key": made.key_pem}

    return Group(
        "registry_certificate",
        ("registry_ca", "registry_cert", "registry_key"),
        make,
        " ".join(addresses),
        INTERNAL_DAYS,
    )


def service_certificate() -> Group:
    """Return the certificate by which agents, and other job services, know the job service.

    It names no machine: it stays what it is when managers come and go, so that agents that run go on.
    """

    def make() -> Mapping[str, str]:
        made = make_ca_and_cert(["service"], INTERNAL_DAYS, also_client=True)
        return {"service_ca": made.ca_pem, "service_cert": made.cert_pem, "service_key": made.key_pem}

    items = ("service_ca", "service_cert", "service_key")
    return Group("service_certificate", items, make, days=INTERNAL_DAYS)


def self_made_certificate(names: Iterable[str]) -> Group:
    """Return the certificate that browsers see where the lab gives none."""
    known = list(dict.fromkeys(names))

    def make() -> Mapping[str, str]:
        made = make_ca_and_cert(known)
        return {"tls_cert": made.cert_pem, "tls_key": made.key_pem}

    return Group("tls", ("tls_cert", "tls_key"), make, "self-made " + " ".join(known), BROWSER_DAYS)


def given(name: str, content: Mapping[str, str], mark: str) -> Group:
    """Return a group whose content the administrator gave; empty when it was given at an earlier time."""

    def make() -> Mapping[str, str]:
        if not all(content.values()):
            raise OptionUnusable(f"The secret {name} is gone from the Swarm. Give its files to `up` again.")
        return content

    return Group(name, tuple(content), make, mark)


def keep(daemon: Daemon, groups: Iterable[Group]) -> tuple[dict[str, Kept], int]:
    """Make what is missing; return all secrets by item, and how many were made."""
    there = _all(daemon)
    kept: dict[str, Kept] = {}
    made = 0
    for group in groups:
        found = whole(group, there, time.time())
        if found is None:
            found = _make(daemon, group)
            made += len(found)
        kept |= found
    return kept, made


def tidy(daemon: Daemon, kept: Mapping[str, Kept]) -> None:
    """Remove secrets that nothing uses any more: of earlier certificates, of a run that was cut off."""
    ids = {one.id for one in kept.values()}
    for secret in _all(daemon):
        if secret["ID"] not in ids:
            with suppress(DockerError):  # still in use by a container that is just ending: next time
                daemon.once("remove_secret", secret["ID"])


def whole(group: Group, there: Iterable[Mapping[str, Any]], now: float) -> dict[str, Kept] | None:
    """Return the secrets of the newest run that made all of a group for what it is needed for."""
    runs: dict[str, dict[str, Kept]] = {}
    for secret in sorted(there, key=lambda one: one["CreatedAt"]):
        marks = secret["Spec"]["Labels"]
        until = float(marks.get(_UNTIL, "inf"))
        if (marks.get(_GROUP), marks.get(_FOR)) == (group.name, group.mark) and until - now > _RENEW_S:
            run = runs.pop(marks[_RUN], {})
            runs[marks[_RUN]] = run | {marks[_ITEM]: Kept(secret["ID"], secret["Spec"]["Name"])}
    found = [run for run in runs.values() if set(run) == set(group.items)]
    return found[-1] if found else None


def _make(daemon: Daemon, group: Group) -> dict[str, Kept]:
    run = secrets.token_hex(4)
    until = time.time() + group.days * 86400 if group.days else None
    made: dict[str, Kept] = {}
    for item, content in group.make().items():
        name = f"{CLUSTER}_{item}_{run}"
        marks = {_ITEM: item, _GROUP: group.name, _RUN: run, _FOR: group.mark}
        if until is not None:
            marks[_UNTIL] = f"{until:.0f}"
        answer = daemon.call("create_secret", name, content.encode(), labels=labels(_ROLE) | marks)
        made[item] = Kept(answer["ID"], name)
    return made


def _passwords() -> Mapping[str, str]:
    reader, publisher = secrets.token_hex(24), secrets.token_hex(24)
    return {
        "registry_reader": f"{READER}:{reader}",
        "registry_publisher": f"{PUBLISHER}:{publisher}",
        "registry_htpasswd": htpasswd_line(READER, reader) + htpasswd_line(PUBLISHER, publisher),
    }


def _all(daemon: Daemon) -> list[Mapping[str, Any]]:
    return list(daemon.call("secrets", filters=label_filter(_ROLE)))
