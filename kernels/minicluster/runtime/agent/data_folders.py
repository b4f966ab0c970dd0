"""A job's data sets as its ranks see them: links by their names to folders in the node's cache."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from minicluster.train.data_sets import LINKS

CACHE = "MINICLUSTER_DATA_CACHE"
"""Where the folders are that the node's keeper fills."""
_LOOK_S = 0.1


class NoDataHere(Exception):
    """The task was started without a node's cache; the text is for the job's owner."""


async def show(folders: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> None:
    """Link the data sets, and nothing else. Waits for those that are still on their way: of a task that
    joins a running attempt. Raises NoDataHere, OSError.
    """
    if not folders and LINKS not in environ:
        return
    missing = [name for name in (LINKS, CACHE) if name not in environ]
    if missing:
        raise NoDataHere(f"the task has no cache of data sets ({', '.join(missing)} not set)")
    links, cache = Path(environ[LINKS]), Path(environ[CACHE]) / "sets"
    _clear(links)
    for name, folder in folders.items():
        while not (cache / folder).is_dir():  # noqa: ASYNC110 - the keeper is a process of its own
            await asyncio.sleep(_LOOK_S)
        link = links / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(cache / folder)


def _clear(links: Path) -> None:
    """Take away the links of the job before; the folder itself may be a mount."""
    links.mkdir(parents=True, exist_ok=True)
    for path in links.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
