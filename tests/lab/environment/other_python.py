"""A user's own Jupyter environment: another Python than the cluster's, `pip install "minicluster[notebook]"`.

No image and nothing of the tests' own environment is in it: another interpreter of this machine, a fresh
environment of it, and this tree's wheel as PyPI would have it, with what pip fetches for it. It has no torch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CLUSTERS_MINOR = "3.11"
"""Debian 12's, which the lab's images have."""
LACKING = f"this machine has no Python of another minor version than {CLUSTERS_MINOR} (3.12 or newer)"
_TRIES = "import sys, ssl, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"


def other_python() -> Path | None:
    """Return an interpreter that minicluster runs on and the cluster does not have: on PATH, or pyenv's."""
    return next((python for python in _candidates() if _usable(python)), None)


def environment_of(python: Path, tree: Path, folder: Path) -> Path:
    """Make an environment as the laptop's guide says; return its interpreter."""
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
    """Whether it runs at all (pyenv's shims do only where their version is chosen), and how new it is."""
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
