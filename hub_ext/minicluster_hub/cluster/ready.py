"""`run ready`, in the hub's container: checks whether proxy and job service answer."""

from __future__ import annotations

import json
import ssl
import sys
import urllib.error
import urllib.request

_ADDRESSES = {
    # One of these: the proxy may have TLS.
    "proxy": ("https://proxy:8000/hub/health", "http://proxy:8000/hub/health"),
    "service": ("http://service:8082/services/minicluster/health",),
}
_LIMIT_S = 3.0


def main() -> int:
    """Print as JSON which services do not answer, and why."""
    problems = {name: [_problem(url) for url in urls] for name, urls in _ADDRESSES.items()}
    sys.stdout.write(json.dumps({name: found[0] for name, found in problems.items() if None not in found}))
    return 0


def _problem(url: str) -> str | None:
    """Return why nothing answers at a URL; None if something does."""
    context = ssl._create_unverified_context()  # noqa: S323 - the certificate is for the name that browsers use
    try:
        urllib.request.urlopen(url, timeout=_LIMIT_S, context=context).close()  # noqa: S310 - our own addresses
    except urllib.error.HTTPError as error:
        return None if error.code < 500 else f"answers {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return None
