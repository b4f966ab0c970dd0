"""Turns the command line into choices, and into the secrets that these need."""

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
_TOKENS = ("proxy_token", "service_token", "spawner_token", "keeper_token")


def chosen(before: Choices, given: argparse.Namespace) -> Choices:
    """Return the choices, updated with the given options. Raises OptionUnusable."""
    options = vars(given)
    now = before.with_given(options)
    if options.get("http"):
        now = now.with_given({"tls": TLS_NONE, "tls_mark": ""})
    elif options.get("self_made"):
        now = now.with_given({"tls": TLS_SELF_MADE, "tls_mark": ""})
    elif options.get("tls_cert"):
        now = now.with_given({"tls": TLS_OWN, "tls_mark": _checked_mark(given, now)})
    elif now.tls == TLS_OWN and now.domain not in ("", before.domain):
        # The certificate was checked when it was given; Docker does not return it.
        raise OptionUnusable(
            f"--domain {now.domain}: give the certificate again, by --tls-cert and --tls-key: it has to hold"
            f" {now.domain} and *.{now.domain}."
        )
    if options.get("port") is None and before.port == _USUAL_PORTS[before.tls]:
        now = now.with_given({"port": _USUAL_PORTS[now.tls]})
    if options.get("db_url"):
        now = now.with_given({"has_db_url": True, "db_mark": f"{time.time():.0f}"})
    if now.shared_data and not now.shared_data.startswith("/"):
        raise OptionUnusable(
            f"--shared-data {now.shared_data}: it has to be a full path, the same on each manager."
        )
    if now.shared_data and not now.has_db_url:
        raise OptionUnusable(
            "--shared-data needs a PostgreSQL database, given by --db-url-file: job services on several"
            " managers cannot share SQLite."
        )
    return now


def _checked_mark(given: argparse.Namespace, now: Choices) -> str:
    """Return a mark that identifies this certificate. Raises OptionUnusable."""
    try:
        check_pair(given.tls_cert, given.tls_key, now.served_names)
    except CertificateUnusable as error:
        raise OptionUnusable(str(error)) from error
    return hashlib.sha256(given.tls_cert.encode()).hexdigest()[:16]


def secret_groups(
    choices: Choices, given: argparse.Namespace, managers: Sequence[SwarmNode]
) -> Iterable[secrets.SecretGroup]:
    """Return the secrets that these choices need. managers: the nodes that the platform may run on."""
    content = {name: getattr(given, name, None) or "" for name in ("tls_cert", "tls_key", "db_url")}
    yield from map(secrets.token, _TOKENS)
    yield secrets.registry_passwords()
    yield secrets.registry_certificate([node.address for node in managers])
    yield secrets.service_certificate()
    if choices.tls == TLS_OWN:
        tls = {"tls_cert": content["tls_cert"], "tls_key": content["tls_key"]}
        yield secrets.provided("tls", tls, choices.tls_mark)
    elif choices.tls == TLS_SELF_MADE:
        of_managers = [name for node in managers for name in (node.address, node.name)]
        yield secrets.self_made_certificate([*choices.served_names, *of_managers, *_LOCAL])
    if choices.has_db_url:
        yield secrets.provided("db_url", {"db_url": content["db_url"]}, choices.db_mark)
