"""Take out of installed packages what no notebook and no rank ever reads, and compile the rest.

Images are read-only to their users, so a module without its .pyc is compiled again in every process.
"""

from __future__ import annotations

import compileall
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = ("networkx", "scipy", "sklearn", "sympy")
"""Packages whose folders named tests are imported by nothing else (numpy's are)."""

UNUSED = (
    "torch/test",
    "torch/bin/*Test",
    "torch/bin/protoc*",
    "torch/bin/test_*",
    "torch/lib/*_test.so",
    "matplotlib/tests",
    "mpl_toolkits/*/tests",
    "tensorflow/include",
)
"""C++ tests and the compiler of protocol buffers; torch's headers stay, torch.compile on CPUs reads them.
TensorFlow's serve only those who compile operations of their own."""


def unused(packages: Path) -> Iterator[Path]:
    """Yield the files and folders that can go."""
    for pattern in UNUSED:
        yield from packages.glob(pattern)
    for name in TESTS:
        yield from (packages / name).rglob("tests")


def trim(packages: Path) -> None:
    """Remove what is unused."""
    for path in sorted(unused(packages)):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()


def main() -> None:
    """Trim and compile the packages of the environment in a folder, as if it lay where `--as` says."""
    root = Path(sys.argv[1])
    for packages in root.glob("opt/minicluster/lib/python3.*/site-packages"):
        trim(packages)
        compileall.compile_dir(
            packages, quiet=2, stripdir=str(root), prependdir="/", workers=os.cpu_count() or 1, maxlevels=30
        )


if __name__ == "__main__":
    main()
