"""The data folder: created, checked, and locked so that one cluster at a time uses it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from minicluster_hub.launch.errors import DatabaseBroken, DataFolderUnusable

_CHECKED_BYTES = 64 * 2**20


def make(data_dir: Path) -> None:
    """Create the folder and check that it is writable. Raises DataFolderUnusable."""
    try:
        for folder in (data_dir, data_dir / "hub", data_dir / "service"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = data_dir / f".write-probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise DataFolderUnusable(
            f"The data folder {data_dir} cannot be written ({error.strerror})."
            " Choose another with --data DIR."
        ) from error


@contextmanager
def locked(data_dir: Path, holder: str) -> Iterator[None]:
    """Lock the folder for this process. holder: shown by a second start that finds the folder in use."""
    path = data_dir / "lock"
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            raise DataFolderUnusable(
                f"The data folder {data_dir} is in use by {lock.read().strip() or 'another process'}."
                " End that one, or choose another folder with --data DIR."
            ) from error
        lock.truncate(0)
        lock.write(holder)
        lock.flush()
        yield


def check_databases(data_dir: Path) -> None:
    """Check that the existing databases are readable. Raises DatabaseBroken."""
    for path in (data_dir / "hub" / "jupyterhub.sqlite", data_dir / "service" / "minicluster.sqlite"):
        if path.exists():
            _check_database(path)


def _check_database(path: Path) -> None:
    try:
        with closing(sqlite3.connect(path, timeout=2)) as database:
            database.execute("select count(*) from sqlite_master").fetchone()
            small = path.stat().st_size <= _CHECKED_BYTES
            found = database.execute("pragma quick_check(1)").fetchone()[0] if small else "ok"
    except (sqlite3.DatabaseError, OSError) as error:
        found = str(error)
    if found != "ok":
        raise DatabaseBroken(
            f"The database {path} is broken ({found}). Restore it from a backup. Or move it away:"
            " then the next start makes an empty one."
        )
