"""The parts: folders of tests, the linters, and what runs beside what."""

from __future__ import annotations

LINTERS = {
    "ruff": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "pyright": ["pyright"],
}
IN_TURN = ("unit", "service", "runtime", "hub", "browser", "chaos")
"""One after the other: most of them keep the processor busy."""

BESIDE = "lab"
"""Beside them: it mostly waits for its machines."""

ORDER = (*IN_TURN, BESIDE)
