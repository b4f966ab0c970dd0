"""The names in a job's result, from its head alone: the job service opens no pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MAGIC = b"MCL1"
_HEAD_BYTES = 1 << 20
_NAMES_BYTES = 1 << 18
_MOST = 500


def result_names(path: Path) -> tuple[str, ...]:
    """Return the names; none of a result without them: of an earlier release, damaged, or removed.

    The file has a magic word, the size of its head in 8 bytes, a head in JSON, and the head's sections.
    """
    try:
        with path.open("rb") as file:
            start = file.read(12)
            size = int.from_bytes(start[4:], "big")
            if start[:4] != _MAGIC or size > _HEAD_BYTES:
                return ()
            sections: dict[str, int] = json.loads(file.read(size))["sections"]
            before = list(sections).index("returned")
            file.seek(12 + size + sum(list(sections.values())[:before]))
            return _strings(json.loads(file.read(min(sections["returned"], _NAMES_BYTES))))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _strings(names: Any) -> tuple[str, ...]:
    return tuple(name for name in names if isinstance(name, str))[:_MOST] if isinstance(names, list) else ()
