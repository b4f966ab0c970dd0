"""All benchmarks of users' data: pushing and fetching data sets, reading images, publishing an image.

Runs data_sets.py, data_loader.py and publishing.py, one after the other; --quick: with a tenth of the data.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PARTS = {
    "data_sets.py": ("--mb", "100", "--files", "2000"),
    "data_loader.py": ("--images", "2000", "--rounds", "1"),
    "publishing.py": ("--base-mb", "20", "--package-mb", "2"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="with a tenth of the data")
    given = parser.parse_args()
    short = False
    for part, quick in PARTS.items():
        print(f"== {part}", flush=True)
        command = [sys.executable, str(Path(__file__).with_name(part)), *(quick if given.quick else ())]
        short |= subprocess.run(command, check=False).returncode != 0
    sys.exit(short)


if __name__ == "__main__":
    main()
