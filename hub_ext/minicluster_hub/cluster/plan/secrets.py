"""The cluster's secrets, made in groups.

Docker does not return the content of a secret. So the members of a group (a password and its hash, a
certificate and its key) have a label of the run that made them. If one is missing, or the group was made for
other addresses, the whole group is made again.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.errors import OptionUnusable
from minicluster_hub.cluster.plan.certificates import BROWSER_DAYS, INTERNAL_DAYS, make_ca_and_cert
from minicluster_hub.cluster.plan.drafts import SwarmObject
from minicluster_hub.cluster.registry.config import htpasswd_line
from minicluster_hub.engines.swarm.names import CLUSTER, label_filter, labels

_ROLE = "secret"
_PREFIX = "org.minicluster."
_ITEM, _GROUP, _RUN, _FOR, _UNTIL = (f"{_PREFIX}{name}" for name in ("item", "group", "run", "for", "until"))
_RENEW_S = 30 * 86400.0
READER, PUBLISHER = "reader", "publisher"


@dataclass(frozen=True)
class SecretGroup:
    """Secrets that are made together.

    items: their names. made_for: what their content depends on. days: their validity; 0: for ever.
    """

    name: str
    items: tuple[str, ...]
    make: Callable[[], Mapping[str, str]]
    made_for: str = ""
    days: int = 0

    @property
    def mark(self) -> str:
        return hashlib.sha256(self.made_for.encode()).hexdigest()[:12]


def token(name: str) -> SecretGroup:
    """Return the group of one random secret."""
    return SecretGroup(name, (name,), lambda: {name: secrets.token_hex(32)})


def registry_passwords() -> SecretGroup:
    """Return the passwords of reader and publisher, with the registry's password file."""

    def make() -> Mapping[str, str]:
        logins = {name: secrets.token_hex(24) for name in (READER, PUBLISHER)}
        lines = (htpasswd_line(name, password) for name, password in logins.items())
        passwords = {f"registry_{name}": f"{name}:{password}" for name, password in logins.items()}
        return {**passwords, "registry_htpasswd": "".join(lines)}

    items = ("registry_reader", "registry_publisher", "registry_htpasswd")
    return SecretGroup("registry_passwords", items, make)


def registry_certificate(addresses: Sequence[str]) -> SecretGroup:
    """Return the certificate that registry and cache show to the relays."""
    return _internal_certificate("registry", [*addresses, "registry", "cache"], " ".join(addresses))


def service_certificate() -> SecretGroup:
    """Return the certificate that proves a job service to agents and to other job services.

    It names no machine, so it stays the same when managers change, and running agents go on.
    """
    return _internal_certificate("service", ["service"], also_client=True)


def _internal_certificate(
    name: str, hosts: Sequence[str], made_for: str = "", *, also_client: bool = False
) -> SecretGroup:
    def make() -> Mapping[str, str]:
        made = make_ca_and_cert(hosts, INTERNAL_DAYS, also_client=also_client)
        return {f"{name}_ca": made.ca_pem, f"{name}_cert": made.cert_pem, f"{name}_key": made.key_pem}

    items = (f"{name}_ca", f"{name}_cert", f"{name}_key")
    return SecretGroup(f"{name}_certificate", items, make, made_for, INTERNAL_DAYS)


def self_made_certificate(names: Iterable[str]) -> SecretGroup:
    """Return the certificate for browsers, if the lab gives none."""
    known = list(dict.fromkeys(names))

    def make() -> Mapping[str, str]:
        made = make_ca_and_cert(known)
        return {"tls_cert": made.cert_pem, "tls_key": made.key_pem}

    return SecretGroup("tls", ("tls_cert", "tls_key"), make, "self-made " + " ".join(known), BROWSER_DAYS)


def provided(name: str, content: Mapping[str, str], mark: str) -> SecretGroup:
    """Return a group with content from the administrator; content: "" if an earlier run stored it."""

    def make() -> Mapping[str, str]:
        if not all(content.values()):
            raise OptionUnusable(f"The secret {name} is gone from the Swarm. Give its files to `up` again.")
        return content

    return SecretGroup(name, tuple(content), make, mark)


def ensure(daemon: Daemon, groups: Iterable[SecretGroup]) -> tuple[dict[str, SwarmObject], int]:
    """Make missing groups; return all secrets by item, and the number of new ones."""
    there = daemon.call("secrets", filters=label_filter(_ROLE))
    kept: dict[str, SwarmObject] = {}
    made = 0
    for group in groups:
        found = whole(group, there, time.time())
        if found is None:
            found = _make(daemon, group)
            made += len(found)
        kept |= found
    return kept, made


def whole(
    group: SecretGroup, there: Iterable[Mapping[str, Any]], now: float
) -> dict[str, SwarmObject] | None:
    """Return the newest complete and valid set of a group's secrets; None if there is none."""
    runs: dict[str, dict[str, SwarmObject]] = {}
    for secret in sorted(there, key=lambda one: one["CreatedAt"]):
        marks = secret["Spec"]["Labels"]
        until = float(marks.get(_UNTIL, "inf"))
        if (marks.get(_GROUP), marks.get(_FOR)) == (group.name, group.mark) and until - now > _RENEW_S:
            run = runs.pop(marks[_RUN], {})
            runs[marks[_RUN]] = run | {marks[_ITEM]: SwarmObject(secret["ID"], secret["Spec"]["Name"])}
    found = [run for run in runs.values() if set(run) == set(group.items)]
    return found[-1] if found else None


def _make(daemon: Daemon, group: SecretGroup) -> dict[str, SwarmObject]:
    run = secrets.token_hex(4)
    until = {_UNTIL: f"{time.time() + group.days * 86400:.0f}"} if group.days else {}
    made: dict[str, SwarmObject] = {}
    for item, content in group.make().items():
        name = f"{CLUSTER}_{item}_{run}"
        marks = {_ITEM: item, _GROUP: group.name, _RUN: run, _FOR: group.mark, **until}
        answer = daemon.call("create_secret", name, content.encode(), labels=labels(_ROLE) | marks)
        made[item] = SwarmObject(answer["ID"], name)
    return made
