"""For all tests: imports only from installed packages, skips for missing tools, and marks.

Marks say when `./test` runs a test; each needs a reason:

    @pytest.mark.full("its promise is kept by test_...")   not in the gate, only in `./test full`
    @pytest.mark.alone("it measures how soon ...")         last, when no other part runs beside it
    @pytest.mark.gate("one lost node")                     tests/lab: in the gate, where else all are `full`
    @pytest.mark.apart("it makes machines of its own")     tests/lab: beside the tests of the standing cluster
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from .suite.runs import WAIT_FOR_ENV

Needs = Callable[[object, str], None]

_TREE = Path(__file__).resolve().parent.parent
_MARKS = ("full", "gate", "apart", "alone")
# With the root on the path, its folders could be imported as packages and would hide packages of these names.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _TREE]

# A busy machine may be slow even with small inputs.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# Its checks are shown as those of test files are.
pytest.register_assert_rewrite("tests.notebooks")


def pytest_sessionstart() -> None:
    """Make fixtures clean up after SIGTERM, too, as after Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests marked `alone` last; refuse marks without a reason."""
    for item in items:
        if {"alone", "apart"} <= {mark.name for mark in item.iter_markers()}:
            raise pytest.UsageError(f"{item.nodeid}: what runs apart runs beside others, and not alone")
        for mark in (mark for name in _MARKS for mark in item.iter_markers(name)):
            if not mark.args:
                raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{mark.name} wants a reason")
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Make a test marked `alone` wait for parallel parts, before its time limit starts."""
    others_ended = os.environ.get(WAIT_FOR_ENV)
    while others_ended and item.get_closest_marker("alone") and not Path(others_ended).exists():
        time.sleep(0.5)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Record the times of set-up, call and teardown: the junit file has only their sum."""
    report = yield
    item.user_properties.append((f"{report.when}_s", f"{call.duration:.3f}"))
    report.user_properties = list(item.user_properties)
    return report


@pytest.fixture(scope="session")
def needs() -> Needs:
    """`needs(found, reason)`: skip the test if something is missing; on CI, fail."""

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
