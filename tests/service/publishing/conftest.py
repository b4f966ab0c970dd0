"""An environment in place of an image, and a package index."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from .index import Index

_TREE = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Environment:
    """A venv with the user site enabled, like /opt/minicluster in an image.

    It has the packages of the tests' own environment.
    """

    folder: Path
    index_url: str

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def variables(self, user_base: Path | None = None) -> dict[str, str]:
        """Return the environment variables for a program in it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        base = {"PYTHONUSERBASE": str(user_base)} if user_base else {}
        return {**kept, "PIP_INDEX_URL": self.index_url, **base}

    def run(
        self, source: str, user_base: Path | None = None, more: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        variables = {**self.variables(user_base), **(more or {})}
        command = [str(self.python), "-c", source]
        return subprocess.run(command, env=variables, text=True, capture_output=True, check=False)

    def pip_install(self, user_base: Path, *words: str) -> None:
        command = [str(self.python), "-m", "pip", "install", "--user", "--no-deps", "-q", *words]
        subprocess.run(command, env=self.variables(user_base), check=True, capture_output=True)


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index(tmp_path_factory.mktemp("index")) as served:
        files = {"tinycolours/__init__.py": "RED = 'ff0000'\n\ndef main():\n    print(RED)\n"}
        served.add("tinycolours", "1.0", files, script="tinycolours:main")
        served.add("tinycolours", "1.1", {"tinycolours/__init__.py": "RED = 'ee0000'\n"})
        served.add("tinyshape", "2.0", {"tinyshape.py": "SIDES = 3\n"})
        yield served


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory, index: Index) -> Environment:
    return make_environment(tmp_path_factory.mktemp("image") / "minicluster", index.url)


def make_environment(folder: Path, index_url: str) -> Environment:
    """Make a venv whose pip uses this index."""
    command = [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(folder)]
    subprocess.run(command, check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "tests.pth").write_text(f"{_TREE / 'kernels'}\n{sysconfig.get_path('purelib')}\n")
    return Environment(folder, index_url)
