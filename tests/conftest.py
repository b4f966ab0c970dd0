"""For all tests: imports come from the installed packages, what a machine lacks is told, and marks are kept.

Marks say when `./test` runs a test; each wants a reason in words:

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
# With the root on the path its rooms would be importable as packages, and hide others of these names.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _TREE]

# A busy machine takes its time for small inputs, too.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_sessionstart() -> None:
    """Have fixtures clear up when the tests are ended from outside, too, as after Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have tests that want to be alone last; refuse a mark without its reason."""
    for item in items:
        if {"alone", "apart"} <= {mark.name for mark in item.iter_markers()}:
            raise pytest.UsageError(f"{item.nodeid}: what runs apart runs beside others, and not alone")
        for mark in (mark for name in _MARKS for mark in item.iter_markers(name)):
            if not mark.args:
                raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{mark.name} wants a reason")
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test that wants to be alone wait for the parts beside it; its time limit begins later."""
    others_ended = os.environ.get(WAIT_FOR_ENV)
    while others_ended and item.get_closest_marker("alone") and not Path(others_ended).exists():
        time.sleep(0.5)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Note what set-up, call and teardown took: the junit file has their sum only."""
    report = yield
    item.user_properties.append((f"{report.when}_s", f"{call.duration:.3f}"))
    report.user_properties = list(item.user_properties)
    return report


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
