"""When an interrupt counts as the user's. For real kernels see tests/hub/test_kernel_ends.py."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from minicluster.interrupts import RunningKernel, StopRequests

from ...patience import until


def in_a_kernel(**more: Any) -> RunningKernel:
    return RunningKernel(SimpleNamespace(kernel=SimpleNamespace(), exit_now=False, **more))


def test_in_a_terminal_an_interrupt_is_a_persons_at_once() -> None:
    stops = StopRequests(RunningKernel(SimpleNamespace(exit_now=False)))
    assert not stops.certain
    stops.interrupt()
    assert stops.certain and stops.count == 1


def test_in_a_kernel_it_is_so_when_a_moment_has_passed() -> None:
    stops = StopRequests(in_a_kernel())
    began = time.monotonic()
    stops.interrupt()
    until(lambda: stops.certain)
    assert time.monotonic() - began >= 0.9


def test_an_interrupt_that_another_follows_is_a_persons_though_the_kernel_ends() -> None:
    kernel = in_a_kernel()
    stops = StopRequests(kernel)
    stops.interrupt()
    stops.interrupt()
    kernel._shell.exit_now = True
    assert stops.certain


def test_the_managers_interrupt_is_its_own_also_when_it_is_taken_after_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = in_a_kernel()
    stops = StopRequests(kernel)
    kernel._shell.exit_now = True
    stops.interrupt()
    monkeypatch.setattr("minicluster.interrupts._ENDS_WITHIN_S", 0.0)
    assert not stops.certain, "nor when the notebook looks late"


def test_a_persons_interrupt_is_one_though_the_managers_is_taken_after_its_request() -> None:
    kernel = in_a_kernel()
    stops = StopRequests(kernel)
    stops.interrupt()
    kernel._shell.exit_now = True
    stops.interrupt()
    assert stops.certain


def test_a_stop_button_is_a_persons_at_once() -> None:
    stops = StopRequests(in_a_kernel())
    stops.interrupt()
    stops.ask()
    assert stops.certain and stops.count == 2


def test_a_kernel_that_was_asked_to_end_ends() -> None:
    shell = SimpleNamespace(kernel=SimpleNamespace(), exit_now=False)
    kernel = RunningKernel(shell)
    assert not kernel.ends
    shell.exit_now = True
    assert kernel.ends


def test_a_kernel_says_from_time_to_time_for_which_job_it_waits(monkeypatch) -> None:
    sent: list[Any] = []
    session = SimpleNamespace(send=lambda socket, kind, content, ident: sent.append((kind, content)))
    ours = SimpleNamespace(session=session, iopub_socket=None, ident="k")
    kernel = RunningKernel(SimpleNamespace(kernel=ours, exit_now=False))
    monkeypatch.setattr("minicluster.interrupts._BUSY_AGAIN_S", 0.0)
    kernel.stay_busy(12, 1.5)
    assert sent == [("status", {"execution_state": "busy", "minicluster": {"job": 12, "made": 1.5}})]
