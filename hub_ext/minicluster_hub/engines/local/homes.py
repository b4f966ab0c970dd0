"""Where users' homes lie, for the notebook servers and for the tasks alike."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

_LONGEST_NAME = 120


def home_of(data_dir: Path, user_name: str) -> Path:
    """Return the user's home in a data folder; it may not be there yet."""
    return data_dir / "homes" / folder_name(user_name)


def folder_name(user_name: str) -> str:
    """Turn any user name into one folder name; different names stay different."""
    escaped = quote(user_name, safe="@+")
    if escaped.startswith("."):
        escaped = "%2E" + escaped[1:]
    if len(escaped) >= _LONGEST_NAME:
        digest = hashlib.sha256(user_name.encode()).hexdigest()
        escaped = f"{escaped[: _LONGEST_NAME - 33]}-{digest[:32]}"
    return escaped or "%"
