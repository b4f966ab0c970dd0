"""A user's own Jupyter environment, with `pip install "minicluster[notebook]"` and another Python version.

It uses no image and nothing of the tests' environment: a new environment of another interpreter of this
machine, with this tree's wheel, as on PyPI, and its dependencies from pip. It has no torch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CLUSTERS_MINOR = "3.11"
"""The Python version of Debian 12, in the lab's images."""
LACKING = f"this machine has no Python of another minor version than {CLUSTERS_MINOR} (3.12 or newer)"
_TRIES = "import sys, ssl, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"


def other_python() -> Path | None:
    """Return a supported interpreter of another version than the cluster's, from PATH or pyenv."""
    return next((python for python in _candidates() if _usable(python)), None)


def environment_of(python: Path, tree: Path, folder: Path) -> Path:
    """Make an environment as described in the guide for laptops; return its interpreter."""
    wheels = ["--no-deps", "--wheel-dir", folder / "dist", tree]
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", *wheels)
    (wheel,) = (folder / "dist").glob("minicluster-*.whl")
    _run(python, "-m", "venv", folder / "laptop")
    made = folder / "laptop" / "bin" / "python"
    _run(made, "-m", "pip", "install", "--quiet", f"{wheel}[notebook]")
    return made


def _candidates() -> list[Path]:
    folders = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep)]
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    folders += sorted(root.glob("versions/*/bin"))
    found = [path for folder in folders for path in folder.glob("python3.*")]
    return [path for path in found if re.fullmatch(r"python3\.\d+", path.name)]


def _usable(python: Path) -> bool:
    """Whether an interpreter runs (pyenv's shims may not) and is of a supported version."""
    arguments = [str(python), "-c", _TRIES]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    minor = done.stdout.strip()
    return minor != CLUSTERS_MINOR and minor.startswith("3.") and int(minor[2:]) >= 11


def _run(*words: str | Path) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert not done.returncode, f"{' '.join(map(str, words))}:\n{done.stdout}\n{done.stderr}"
