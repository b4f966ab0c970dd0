"""`run ready`, in the hub's container: whether hub, proxy and job service answer, seen from inside."""

from __future__ import annotations

import json
import ssl
import sys
import urllib.error
import urllib.request

_DOORS = {
    "proxy": ("https://proxy:8000/hub/health", "http://proxy:8000/hub/health"),
    "service": ("http://service:8082/services/minicluster/health",),
}
_LIMIT_S = 3.0


def main() -> int:
    """Print what does not answer, by name, as JSON."""
    silent = {}
    for name, addresses in _DOORS.items():
        answers = [_ask(address) for address in addresses]
        if None not in answers:
            silent[name] = answers[0]
    sys.stdout.write(json.dumps(silent))
    return 0


def _ask(url: str) -> str | None:
    """Return None if something answers there, else why not."""
    context = ssl.create_default_context()
    context.check_hostname = False  # the certificate is for the name that browsers use
    context.verify_mode = ssl.CERT_NONE
    try:
        urllib.request.urlopen(url, timeout=_LIMIT_S, context=context).close()  # noqa: S310 - our own addresses
    except urllib.error.HTTPError as error:
        return None if error.code < 500 else f"answers {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return None
