"""Files from beside the notebook, laid out as the ranks' working folder: see minicluster.capture.bundle.

The folder goes with the attempt, so its owner is told which files go with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from minicluster.capture.payload import PayloadDamaged, unpack
from minicluster.wire import relative_path

from minicluster.runtime.paths import AttemptPaths, write_whole

_MOST_NAMED = 5


def lay_out(paths: AttemptPaths) -> None:
    """Make an attempt's working folder from its bundle. Raises PayloadDamaged, OSError."""
    unpack_bundle(paths.bundle, paths.work)
    write_whole(paths.laid_out, json.dumps(dict(_stamps(paths.work))).encode())


def unpack_bundle(bundle: Path, folder: Path) -> None:
    """Write a bundle's files, none of them elsewhere, and drop it. Raises PayloadDamaged, OSError."""
    head, files = unpack(bundle.read_bytes())
    bundle.unlink()
    folder.mkdir(parents=True)
    for name, data in files.items():
        try:
            path = folder / relative_path(name)
        except ValueError as error:
            raise PayloadDamaged(f"a bundle with the path {name!r}: {error}") from error
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if name in head["runnable"] else 0o644)


def gone(paths: AttemptPaths, node: str) -> list[str]:
    """Say which files the ranks made or changed in the folder, nothing if there are none."""
    try:
        before: dict[str, int] = json.loads(paths.laid_out.read_bytes())
    except (OSError, ValueError):
        return []  # The folder was not laid out to its end.
    new = sorted(name for name, changed_at in _stamps(paths.work) if before.get(name) != changed_at)
    if not new:
        return []
    more = f" and {len(new) - _MOST_NAMED} more" if len(new) > _MOST_NAMED else ""
    named = ", ".join(new[:_MOST_NAMED]) + more
    return [
        f"What the cell wrote into its working folder on {node} is gone: {named}. "
        "With --with that is a copy; what is written into mc.output() comes back."
    ]


def _stamps(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield each file with the time of its last change."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            path = Path(place, name)
            yield path.relative_to(folder).as_posix(), path.lstat().st_mtime_ns
