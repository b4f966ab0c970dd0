"""From the command line to choices, and to the secrets that these need."""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Iterable, Sequence

from minicluster_hub.cluster.errors import OptionUnusable
from minicluster_hub.cluster.plan import secrets
from minicluster_hub.cluster.plan.certificates import CertificateUnusable, check_pair
from minicluster_hub.cluster.plan.choices import TLS_NONE, TLS_OWN, TLS_SELF_MADE, Choices
from minicluster_hub.engines.swarm.view import SwarmNode

_LOCAL = ("localhost", "127.0.0.1")
_USUAL_PORTS = {TLS_NONE: 80, TLS_SELF_MADE: 443, TLS_OWN: 443}


def chosen(before: Choices, given: argparse.Namespace) -> Choices:
    """Return the choices with what was given now in their place. Raises OptionUnusable."""
    now = before.with_given(vars(given))
    if getattr(given, "http", False):
        now = now.with_given({"tls": TLS_NONE, "tls_mark": ""})
    elif getattr(given, "self_made", False):
        now = now.with_given({"tls": TLS_SELF_MADE, "tls_mark": ""})
    elif getattr(given, "tls_cert", None):
        now = now.with_given({"tls": TLS_OWN, "tls_mark": _checked_mark(given, now)})
    _check_domain(before, now, given)
    if getattr(given, "port", None) is None and before.port == _USUAL_PORTS[before.tls]:
        now = now.with_given({"port": _USUAL_PORTS[now.tls]})
    if getattr(given, "db_url", None):
        now = now.with_given({"has_db_url": True, "db_mark": f"{time.time():.0f}"})
    _check_shared(now)
    return now


def _check_domain(before: Choices, now: Choices, given: argparse.Namespace) -> None:
    """The lab's certificate was looked at when it was given, and is no more to be read."""
    known = now.domain in ("", before.domain) or getattr(given, "tls_cert", None)
    if now.tls == TLS_OWN and not known:
        raise OptionUnusable(
            f"--domain {now.domain}: give the certificate again, by --tls-cert and --tls-key: it has to hold"
            f" {now.domain} and *.{now.domain}."
        )


def _check_shared(now: Choices) -> None:
    if now.shared_data and not now.shared_data.startswith("/"):
        raise OptionUnusable(
            f"--shared-data {now.shared_data}: it has to be a full path, the same on each manager."
        )
    if now.shared_data and not now.has_db_url:
        raise OptionUnusable(
            "--shared-data needs a PostgreSQL database, given by --db-url-file: job services on several"
            " managers cannot share SQLite."
        )


def _checked_mark(given: argparse.Namespace, now: Choices) -> str:
    try:
        check_pair(given.tls_cert, given.tls_key, now.served_names)
    except CertificateUnusable as error:
        raise OptionUnusable(str(error)) from error
    return hashlib.sha256(given.tls_cert.encode()).hexdigest()[:16]


def secret_groups(
    choices: Choices, given: argparse.Namespace, managers: Sequence[SwarmNode]
) -> Iterable[secrets.Group]:
    """Return the secrets that these choices need. managers: those that the platform may run on."""
    yield from (
        secrets.token(name) for name in ("proxy_token", "service_token", "spawner_token", "keeper_token")
    )
    yield secrets.registry_passwords()
    yield secrets.registry_certificate([node.address for node in managers])
    yield secrets.service_certificate()
    if choices.tls == TLS_OWN:
        content = {
            "tls_cert": getattr(given, "tls_cert", None) or "",
            "tls_key": getattr(given, "tls_key", None) or "",
        }
        yield secrets.given("tls", content, choices.tls_mark)
    elif choices.tls == TLS_SELF_MADE:
        yield secrets.self_made_certificate(
            [
                *choices.served_names,
                *(name for node in managers for name in (node.address, node.name)),
                *_LOCAL,
            ]
        )
    if choices.has_db_url:
        yield secrets.given("db_url", {"db_url": getattr(given, "db_url", None) or ""}, choices.db_mark)
