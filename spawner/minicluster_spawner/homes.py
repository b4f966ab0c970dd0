"""Users' folders: a safe name for any user name, and the example notebooks in a new home."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from urllib.parse import quote

_LONGEST_NAME = 120


def folder_name(user_name: str) -> str:
    """Turn any user name into one folder name; different names stay different."""
    escaped = quote(user_name, safe="@+")
    if escaped.startswith("."):
        escaped = "%2E" + escaped[1:]
    if len(escaped) >= _LONGEST_NAME:
        digest = hashlib.sha256(user_name.encode()).hexdigest()
        escaped = f"{escaped[: _LONGEST_NAME - 33]}-{digest[:32]}"
    return escaped or "%"


def examples_dir() -> Path:
    """Where the example notebooks lie: in the installed package, or beside it in the source tree."""
    here = Path(__file__).resolve().parent
    installed = here / "notebooks"
    return installed if installed.is_dir() else here.parent.parent / "notebooks"


def make_home(home: Path, examples: Path | None) -> None:
    """Make a home that only its owner enters, with the examples that were never in it."""
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    for notebook in sorted(examples.glob("*.ipynb")) if examples else ():
        _give_once(notebook, home)


def _give_once(notebook: Path, home: Path) -> None:
    """Copy a notebook unless it was given before: one that the user deleted stays deleted."""
    mark = home / ".minicluster" / "given" / notebook.name
    if mark.exists():
        return
    target = home / notebook.name
    if not target.exists():
        temporary = home / f".{notebook.name}.{os.getpid()}"
        shutil.copyfile(notebook, temporary)
        temporary.replace(target)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
