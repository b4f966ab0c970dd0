"""`run ready`, in the hub's container: whether hub, proxy and job service answer, seen from inside."""

from __future__ import annotations

import json
import ssl
import sys
import urllib.error
import urllib.request

_ADDRESSES = {
    # The proxy has TLS or not.
    "proxy": ("https://proxy:8000/hub/health", "http://proxy:8000/hub/health"),
    "service": ("http://service:8082/services/minicluster/health",),
}
_LIMIT_S = 3.0


def main() -> int:
    """Print what does not answer, by name, as JSON."""
    problems = {name: [_problem(url) for url in urls] for name, urls in _ADDRESSES.items()}
    sys.stdout.write(json.dumps({name: found[0] for name, found in problems.items() if None not in found}))
    return 0


def _problem(url: str) -> str | None:
    """Return why nothing answers there; None if something does."""
    context = ssl._create_unverified_context()  # noqa: S323 - the certificate is for the name that browsers use
    try:
        urllib.request.urlopen(url, timeout=_LIMIT_S, context=context).close()  # noqa: S310 - our own addresses
    except urllib.error.HTTPError as error:
        return None if error.code < 500 else f"answers {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return None
