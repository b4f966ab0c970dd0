"""Fill a folder with what a GPU machine without a network needs for tests/gpu and bench/gpu.py besides torch.

    python -m tests.gpu.wheels gpu-wheels --python 3.12      # here; --python: the GPU machine's version

There, in a copy of this tree with that folder, and with the Python that has torch (2.11 or newer, with CUDA):

    python -m venv --system-site-packages gpu-env
    gpu-env/bin/pip install --no-index --no-deps --find-links gpu-wheels -r gpu-wheels/requirements.txt
    gpu-env/bin/python -m pytest tests/gpu
    gpu-env/bin/python bench/gpu.py
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
EXTRAS = ("hub", "notebook", "train")
TESTS = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout")
WITHOUT = ["jupyterlab", "psycopg", "torch"]
"""torch is there; no test opens a browser or asks PostgreSQL."""
CONSTRAINTS = TREE / "constraints.txt"
_WHEEL = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)-.*\.whl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=".".join(platform.python_version_tuple()[:2]), help="as 3.12")
    parser.add_argument(
        "--without", nargs="*", default=[], help="packages that are there besides torch: numpy"
    )
    given = parser.parse_args()
    folder: Path = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in folder.glob("*.whl"):  # of an earlier call
        wheel.unlink()
    pip("wheel", "--no-deps", "--build-constraint", str(CONSTRAINTS), "-w", str(folder), str(TREE))
    chosen = ["--only-binary=:all:", "--python-version", given.python, "-c", str(CONSTRAINTS)]
    pip("download", "-d", str(folder), *chosen, *requirements())
    for wheel in folder.glob("*.whl"):
        if pin(wheel).partition("==")[0] in given.without:
            wheel.unlink()
    pinned = sorted(map(pin, folder.glob("*.whl")))
    (folder / "requirements.txt").write_text("\n".join(pinned) + "\n")
    megabytes = sum(path.stat().st_size for path in folder.glob("*.whl")) / 1e6
    print(
        f"{folder}: {len(pinned)} wheels, {megabytes:.0f} MB, for Python {given.python}, {platform.machine()}"
    )


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *words, "--disable-pip-version-check", "-q"], check=True)


def requirements() -> list[str]:
    program = [sys.executable, str(TREE / "images" / "requirements.py"), str(TREE), *EXTRAS]
    listed = subprocess.run([*program, "--without", *WITHOUT], capture_output=True, text=True, check=True)
    return [*listed.stdout.split("\n")[:-1], *TESTS]


def pin(wheel: Path) -> str:
    found = _WHEEL.fullmatch(wheel.name)
    assert found, wheel
    return f"{found['name']}=={found['version']}"


if __name__ == "__main__":
    main()
