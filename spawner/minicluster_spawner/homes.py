"""Users' homes: made once, with the example notebooks and their modules."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def examples_dir() -> Path:
    """Return the folder of the example notebooks: in the installed package, or in the source tree."""
    here = Path(__file__).resolve().parent
    installed = here / "notebooks"
    return installed if installed.is_dir() else here.parent.parent / "notebooks"


def make_home(home: Path, examples: Path | None) -> None:
    """Make a home that only its owner can read, and copy examples that it never had."""
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    for kind in ("*.ipynb", "*.py"):
        for example in sorted(examples.glob(kind)) if examples else ():
            _copy_once(example, home)


def make_user_site(home: Path) -> None:
    """Make the folder for pip's packages: Python uses it only if it exists when Python starts."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (home / ".local" / "lib" / python / "site-packages").mkdir(parents=True, exist_ok=True)


def _copy_once(example: Path, home: Path) -> None:
    """Copy a file unless it was copied before: a file that the user deleted stays deleted."""
    mark = home / ".minicluster" / "given" / example.name
    if mark.exists():
        return
    target = home / example.name
    if not target.exists():
        temporary = home / f".{example.name}.{os.getpid()}"
        shutil.copyfile(example, temporary)
        temporary.replace(target)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
