"""Sets a cell's folder and import paths: to the files sent with it, or to its notebook's folder."""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

from minicluster.capture.payload import CellPayload
from minicluster.runtime.agent import packages
from minicluster.runtime.paths import AttemptPaths
from minicluster.wire import RunOrder


def at_home(order: RunOrder, payload: CellPayload) -> bool:
    """Return whether the cell runs in the notebook's own folder."""
    return not order.bundle_sha256 and payload.home.seen


def enter(order: RunOrder, payload: CellPayload, paths: AttemptPaths, rank: int) -> None:
    """Change to the cell's folder, and make its modules and packages importable."""
    if order.bundle_sha256:
        os.chdir(paths.work)
    elif payload.home.seen:
        os.chdir(payload.home.folder)
    modules = paths.modules(rank)
    for name, source in payload.modules.items():
        path = modules / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source)
    sys.argv = [payload.script or payload.filename, *payload.arguments]
    sys.path[:0] = [str(modules), ""]
    if payload.packages:
        site.addsitedir(str(packages.folder_of(paths.folder.parent, payload.packages)))


def enter_script(order: RunOrder, payload: CellPayload, paths: AttemptPaths, rank: int) -> str:
    """Put a script's folder on sys.path, as `python` does; return its `__file__`. Call this after `enter`."""
    modules = paths.modules(rank)
    file = Path(payload.script).absolute()
    known = at_home(order, payload) or order.bundle_sha256
    file = file if known and file.is_file() else modules / file.name
    sys.path[:2] = [str(file.parent), str(modules)]
    return str(file)
