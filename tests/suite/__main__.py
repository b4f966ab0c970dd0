"""Runs the requested parts; see `./test --help`."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from .parts import ALL, FRAMEWORKS
from .report import failures, slowest
from .results import clear_results
from .runs import Runs


def main() -> int:
    """Run the gate, everything, or the named parts; return the exit code."""
    asked, pytest_words = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # on SIGTERM, end the parts, too
    clear_results()
    began = time.monotonic()
    runs = Runs(pytest_words)
    try:
        if not asked.parts or (asked.full and asked.parts == [FRAMEWORKS]):
            runs.everything(full=asked.full)
        for part in asked.parts:
            runs.whole_part(part)
    finally:
        print(f"\n== The slowest tests\n{slowest()}")
        print(f"\n== Times\n{runs.times()}\nAll of it: {time.monotonic() - began:.0f} s")
        print("\n".join(failures()))
    if runs.failed:
        print(f"FAILED: {' '.join(runs.failed)}")
        return 1
    print("All passed.")
    return 0


def parse() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="./test", add_help=False, allow_abbrev=False)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--part", action="append", default=[], dest="parts", choices=ALL)
    return parser.parse_known_args()


if __name__ == "__main__":
    sys.exit(main())
