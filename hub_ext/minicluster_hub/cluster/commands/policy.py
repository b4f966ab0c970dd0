"""`minicluster policy`: shows the active policy; with a name, activates another one.

It calls the job service's REST API with an administrator's token, so it works on any machine.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from minicluster.wire import OptionValue, PolicyChoice, PolicyReport

_LIMIT_S = 120.0
_PATH = "/services/minicluster/api/policy"


class PolicyRefused(Exception):
    """The job service refused or did not answer; the message says why."""


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments ask for; return the exit code."""
    parsed = _parse(arguments)
    try:
        hub = _Hub(parsed.url, None if parsed.ca is None else _trusting(parsed.ca))
        report = hub.request()
        if parsed.policy is not None:
            placement = parsed.placement or report.in_force.choice.placement
            choice = PolicyChoice(policy=parsed.policy, placement=placement, options=dict(parsed.options))
            report = hub.request(choice)
    except (PolicyRefused, OSError, ValueError) as error:
        sys.stderr.write(f"minicluster: {error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in _lines(report)))
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="minicluster policy",
        description="Show the active policy and all there are; with a name, activate another.",
        epilog="Set MINICLUSTER_TOKEN to an administrator's token: the hub's page Token makes one.",
    )
    add = parser.add_argument
    add("policy", nargs="?", metavar="NAME", help="the policy to activate; without: show")
    add("--url", required=True, help="the hub's URL as in a browser, like https://lab.example.org")
    add("--ca", type=Path, metavar="FILE", help="the hub's certificate if it is self-signed (PEM)")
    add("--placement", help="another placement than the active one")
    add(
        "--option",
        dest="options",
        action="append",
        type=_option,
        default=[],
        metavar="NAME=VALUE",
        help="an option of the policy; may be repeated",
    )
    parsed = parser.parse_args(arguments)
    if not parsed.url.startswith(("https://", "http://")):
        parser.error(f"--url {parsed.url}: it must begin with https://, as in a browser")
    if (parsed.policy or "").endswith(".py"):
        parser.error(
            f"{parsed.policy}: files cannot be sent. Put it into the cluster's folder of policies (up"
            " --policies; with ./run: DATA/policies), then name it without .py"
        )
    return parsed


def _option(text: str) -> tuple[str, OptionValue]:
    """Parse NAME=VALUE; the value is a number, true, false, or a text."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text}: want NAME=VALUE, like quantum_s=600")
    try:
        read = json.loads(value)
    except ValueError:
        read = value
    return name, read if isinstance(read, bool | int | float) else value


def _trusting(path: Path) -> ssl.SSLContext:
    """Return a context that trusts only an authority's or the hub's certificates. Raises PolicyRefused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise PolicyRefused(f"--ca {path}: {error.strerror or error}; it must be a PEM file") from error
    return context


@dataclass(frozen=True)
class _Hub:
    """The hub's address. tls: the certificates to trust; None: the system's authorities."""

    url: str
    tls: ssl.SSLContext | None

    def request(self, choice: PolicyChoice | None = None) -> PolicyReport:
        """Activate a choice, if there is one; return the active policy. Raises PolicyRefused."""
        token = os.environ.get("MINICLUSTER_TOKEN", "")
        request = urllib.request.Request(  # noqa: S310 - an administrator's own URL
            f"{self.url.rstrip('/')}{_PATH}",
            data=None if choice is None else choice.model_dump_json().encode(),
            method="GET" if choice is None else "PUT",
            headers={"Authorization": f"token {token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_LIMIT_S, context=self.tls) as answer:  # noqa: S310
                return PolicyReport.model_validate_json(answer.read())
        except urllib.error.HTTPError as error:
            raise PolicyRefused(_refusal(error.read(), error.code)) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise PolicyRefused(
                    f"the certificate of {self.url} is not trusted: {error.reason.verify_message}. "
                    "If it is self-signed, give --ca FILE"
                ) from error
            raise PolicyRefused(f"{self.url} cannot be reached: {error.reason}") from error
        except ValueError as error:
            raise PolicyRefused(f"{self.url} is not a hub of Minicluster: its answer is no policy") from error


def _refusal(body: bytes, status: int) -> str:
    try:
        error = json.loads(body)["error"]
        return ". ".join(part for part in (error["message"], error.get("hint")) if part)
    except (ValueError, KeyError, TypeError):
        return f"the hub answers with status {status}; check that browsers use this URL"


def _lines(report: PolicyReport) -> Iterator[str]:
    if report.batch_queue:
        yield f"policy     none: {report.batch_queue} owns the slots, and orders the jobs"
        return
    choice = report.in_force.choice
    options = " ".join(f"{name}={value}" for name, value in choice.options.items())
    yield f"policy     {choice.policy} {options}".rstrip()
    yield f"placement  {choice.placement}"
    if report.in_force.by:
        since = datetime.fromtimestamp(report.in_force.since).astimezone()
        yield f"since      {since:%Y-%m-%d %H:%M}, by {report.in_force.by}"
    else:
        yield "since      the cluster's settings say so"
    if report.trouble:
        yield f"trouble    {report.trouble}"
    yield f"policies   {', '.join(policy.name for policy in report.policies)}"
    yield f"placements {', '.join(placement.name for placement in report.placements)}"
