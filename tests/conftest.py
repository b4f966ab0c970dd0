"""For all tests: imports come from the installed packages, and what a machine lacks is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

Needs = Callable[[object, str], None]

_TREE = Path(__file__).resolve().parent.parent
# With the root on the path its rooms would be importable as packages, and hide others of these names.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _TREE]

# A busy machine takes its time for small inputs, too.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def needs() -> Needs:
    """`needs(found, reason)`: skip where something is missing; on CI that is a failure."""

    def check(found: object, reason: str) -> None:
        if found:
            return
        if os.environ.get("CI"):
            pytest.fail(f"{reason} (required where CI is set)")
        pytest.skip(reason)

    return check


@pytest.fixture(scope="session")
def tree() -> Path:
    """The root of the source tree."""
    return _TREE
