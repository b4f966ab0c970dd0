"""Findings for a person's terminal, and for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace

from minicluster_hub.cluster.doctor.findings import EVERYWHERE, Finding

_LEVELS = ("ok", "warning", "FAILED")


def as_json(findings: Sequence[Finding]) -> str:
    """Return a JSON list, one object per finding."""
    return json.dumps([asdict(finding) for finding in findings], indent=2)


def as_table(findings: Sequence[Finding], nodes: Sequence[str], width: int = 100) -> str:
    """Return a table: what is well first and short, then each trouble with its remedy."""
    rows = _merged_services(_merged(findings, nodes))
    rows.sort(key=lambda row: _LEVELS.index(row.level))
    name_width = max([len(row.node) for row in rows] or [0])
    indent = " " * (9 + name_width + 2)
    lines: list[str] = []
    for row in rows:
        start = f"{row.level:<9}{row.node:<{name_width}}  "
        lines += textwrap.wrap(row.what, width, initial_indent=start, subsequent_indent=indent) or [start]
        lines += textwrap.wrap(
            row.remedy, width, initial_indent=f"{indent}-> ", subsequent_indent=f"{indent}   "
        )
    return "\n".join([*lines, _summary(findings)])


def _merged(findings: Sequence[Finding], nodes: Sequence[str]) -> list[Finding]:
    """Make one row of what is said in the same words of several nodes."""
    where: dict[Finding, dict[str, None]] = {}
    for finding in findings:
        where.setdefault(replace(finding, node=""), {})[finding.node] = None
    rows = []
    for finding, names in where.items():
        everywhere = len(nodes) > 1 and set(names) >= set(nodes)
        rows.append(replace(finding, node="all nodes" if everywhere else ", ".join(names)))
    return rows


def _merged_services(rows: Sequence[Finding]) -> list[Finding]:
    well = [row for row in rows if row.check == "services" and row.level == "ok"]
    others = [row for row in rows if row not in well]
    if well:
        names = ", ".join(row.what.removesuffix(" runs") for row in well)
        others.insert(1, Finding("ok", "services", EVERYWHERE, f"running: {names}"))
    return others


def _summary(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in _LEVELS}
    if counts["FAILED"]:
        return f"\nFAILED: {counts['FAILED']}, warnings: {counts['warning']}"
    return f"\nNothing failed, warnings: {counts['warning']}" if counts["warning"] else "\nAll is well."
