"""Any name of a user as one that containers, volumes, pods and DNS take."""

from __future__ import annotations

import hashlib
import re

_MADE = re.compile(r"(^|-)x[0-9a-f]{12}$")
_SAFE = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def safe(name: str) -> str:
    """Turn any name into one that Docker, Kubernetes and DNS take; different names stay different.

    At most 40 characters. A name that looks like a result of this function is changed, too: else its user
    would have another user's home.
    """
    if _SAFE.fullmatch(name) and "--" not in name and not _MADE.search(name):
        return name
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:16]
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{readable}-x{digest}" if readable else f"x{digest}"
