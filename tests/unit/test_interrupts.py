"""When an interrupt counts as a person's. Real kernels and their ends: tests/hub/test_kernel_ends.py."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from minicluster.interrupts import Kernel, StopRequests


def in_a_kernel(**more: Any) -> Kernel:
    return Kernel(SimpleNamespace(kernel=SimpleNamespace(), exit_now=False, **more))


def test_in_a_terminal_an_interrupt_is_a_persons_at_once() -> None:
    stops = StopRequests(Kernel(SimpleNamespace(exit_now=False)))
    assert not stops.certain
    stops.interrupt()
    assert stops.certain and stops.count == 1


def test_in_a_kernel_it_is_so_when_a_moment_has_passed_however_often_it_comes() -> None:
    stops = StopRequests(in_a_kernel())
    began = time.monotonic()
    while not stops.certain:
        stops.interrupt()
        time.sleep(0.05)
        assert time.monotonic() - began < 3, "each interrupt began the wait anew"
    assert time.monotonic() - began >= 0.9


def test_a_stop_button_is_a_persons_at_once() -> None:
    stops = StopRequests(in_a_kernel())
    stops.interrupt()
    stops.ask()
    assert stops.certain and stops.count == 2


def test_a_kernel_that_was_asked_to_end_ends() -> None:
    shell = SimpleNamespace(kernel=SimpleNamespace(), exit_now=False)
    kernel = Kernel(shell)
    assert not kernel.ends
    shell.exit_now = True
    assert kernel.ends
