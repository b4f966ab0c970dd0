"""A finding: what was looked at, how it stands, and one sentence of remedy if it does not stand well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "FAILED"]
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
