"""Prints one line per target, `NAME value bound ok|short`; exits with code 1 if a target is short."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A figure of this run against its bound. `at_most` False: the value must reach the bound.

    why_short: what is to be said where it is short; in it, {cores} are this machine's.
    """

    name: str
    value: float
    bound: float
    at_most: bool = True
    why_short: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def line(self) -> str:
        return f"{self.name} {self.value:.3f} {self.bound:.3f} {'ok' if self.met else 'short'}"


def close(targets: Iterable[Target]) -> None:
    """Print the targets and end the process."""
    listed = list(targets)
    for target in listed:
        if target.why_short and not target.met:
            print(f"{target.name}: {target.why_short.format(cores=os.cpu_count())}")
    for target in listed:
        print(target.line())
    sys.exit(0 if listed and all(target.met for target in listed) else 1)
