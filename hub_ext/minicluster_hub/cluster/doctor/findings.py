"""The checks' findings, with remedies for problems, and their table."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

Level = Literal["ok", "warning", "FAILED"]
_LEVELS: tuple[Level, ...] = get_args(Level)
EVERYWHERE = "cluster"


@dataclass(frozen=True)
class Finding:
    """node: a node's name, or "cluster". check: a short name for programs."""

    level: Level
    check: str
    node: str
    what: str
    remedy: str = ""


def ok(check: str, node: str, what: str) -> Finding:
    return Finding("ok", check, node, what)


def warning(check: str, node: str, what: str, remedy: str) -> Finding:
    return Finding("warning", check, node, what, remedy)


def failed(check: str, node: str, what: str, remedy: str) -> Finding:
    return Finding("FAILED", check, node, what, remedy)


def as_json(findings: Sequence[Finding]) -> str:
    """Return a JSON list, one object per finding."""
    return json.dumps([asdict(finding) for finding in findings], indent=2)


def as_table(findings: Sequence[Finding], nodes: Sequence[str], width: int = 100) -> str:
    """Return a table: first a summary of the good findings, then each problem with its remedy."""
    rows = _with_services_in_one(_merged(findings, nodes))
    rows.sort(key=lambda row: _LEVELS.index(row.level))
    name_width = max((len(row.node) for row in rows), default=0)
    indent = " " * (9 + name_width + 2)
    lines: list[str] = []
    for row in rows:
        start = f"{row.level:<9}{row.node:<{name_width}}  "
        lines += textwrap.wrap(row.what, width, initial_indent=start, subsequent_indent=indent) or [start]
        first, more = f"{indent}-> ", f"{indent}   "
        lines += textwrap.wrap(row.remedy, width, initial_indent=first, subsequent_indent=more)
    return "\n".join([*lines, _summary(findings)])


def _merged(findings: Sequence[Finding], nodes: Sequence[str]) -> list[Finding]:
    """Merge equal findings about several nodes into one row."""
    where: dict[Finding, dict[str, None]] = {}
    for finding in findings:
        where.setdefault(replace(finding, node=""), {})[finding.node] = None
    every = len(nodes) > 1
    return [
        replace(finding, node="all nodes" if every and set(names) >= set(nodes) else ", ".join(names))
        for finding, names in where.items()
    ]


def _with_services_in_one(rows: Sequence[Finding]) -> list[Finding]:
    well = [row for row in rows if row.check == "services" and row.level == "ok"]
    others = [row for row in rows if row not in well]
    if well:
        names = ", ".join(row.what.removesuffix(" runs") for row in well)
        others.insert(1, ok("services", EVERYWHERE, f"running: {names}"))
    return others


def _summary(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in _LEVELS}
    if counts["FAILED"]:
        return f"\nFAILED: {counts['FAILED']}, warnings: {counts['warning']}"
    return f"\nNothing failed, warnings: {counts['warning']}" if counts["warning"] else "\nAll is well."
