"""The slowest tests and the failed ones, from the junit files of all parts."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass

from .results import RESULTS

SLOWEST = 40
PHASES = ("setup", "call", "teardown")
REASON_CHARACTERS = 300


@dataclass(frozen=True)
class Case:
    """A test in a junit file. seconds: of set-up, call and teardown. failure: why, None if it passed."""

    name: str
    seconds: tuple[float, ...]
    failure: str | None

    @property
    def total_s(self) -> float:
        return sum(self.seconds)


def slowest(count: int = SLOWEST) -> str:
    """Return a table of the slowest tests of all parts."""
    found = sorted(_cases(), key=lambda case: case.total_s, reverse=True)[:count]
    rows = [" ".join(f"{second:8.1f}" for second in (case.total_s, *case.seconds)) for case in found]
    head = " ".join(f"{word:>8}" for word in ("seconds", *PHASES))
    return "\n".join([head, *(f"{row}  {case.name}" for row, case in zip(rows, found, strict=True))])


def failures() -> list[str]:
    """Return two lines for each test that failed: its name, and the beginning of why."""
    failed = [case for case in _cases() if case.failure is not None]
    return [line for case in failed for line in (f"failed: {case.name}", f"        {case.failure}")]


def _cases() -> Iterator[Case]:
    for path in sorted(RESULTS.glob("*.xml")):
        yield from map(_case, ElementTree.parse(path).iter("testcase"))


def _case(found: ElementTree.Element) -> Case:
    properties = {one.get("name"): one.get("value", "0") for one in found.iter("property")}
    folder = found.get("classname", "").removeprefix("tests.").replace(".", "/")
    return Case(
        f"{folder}.py::{found.get('name')}",
        tuple(float(properties.get(f"{phase}_s", "0")) for phase in PHASES),
        _failure(found),
    )


def _failure(found: ElementTree.Element) -> str | None:
    for kind in ("failure", "error"):
        if (why := found.find(kind)) is not None:
            return " ".join(why.get("message", "").split())[:REASON_CHARACTERS]
    return None
