"""The parts of a run, and which of them run beside each other."""

from __future__ import annotations

LINTERS = {
    "ruff": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "pyright": ["pyright"],
    "docs": ["sphinx-build", "-q", "-E", "-W", "--keep-going", "docs", ".test-results/site"],
}
LANES = (("unit", "service", "chaos"), ("runtime", "hub", "browser", "hostile"))
"""The parts of a lane follow each other; lanes run beside each other. All of it is done in less time, since
tests mostly wait for processes that start; what measures time is marked `alone`."""

LAB = "lab"
"""It has a lane of its own, in which it mostly waits for its machines."""
LAB_APART = "lab-apart"
"""Its tests that are marked `apart`, in a lane of their own: they share no machines with the others."""

ALL = (*LANES[0], *LANES[1], LAB)
EMPTY_IN_THE_GATE = ("chaos",)
