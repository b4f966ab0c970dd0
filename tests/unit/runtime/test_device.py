"""A rank's CUDA context is made in a thread that has ended before the cell.

torch.cuda is played: the machines of these tests have no GPU. tests/gpu looks at a real one.
"""

from __future__ import annotations

import threading

import pytest
import torch

from minicluster.runtime.rank.groups import device


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The devices whose context was made, each with the thread that made it."""
    found: list[tuple[int, str]] = []

    def synchronize(number: int) -> None:
        found.append((number, threading.current_thread().name))
        if number == 7:
            raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    return found


def test_the_context_is_there_before_the_cell_and_its_thread_is_gone(touched: list[tuple[int, str]]) -> None:
    context = device.CudaContext()
    context.begin()
    context.ready()
    assert touched == [(1, "minicluster-cuda")]
    assert "minicluster-cuda" not in [thread.name for thread in threading.enumerate()]


def test_what_goes_wrong_is_left_to_the_cells_own_first_use(
    touched: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 7)
    context = device.CudaContext()
    context.begin()
    context.ready()
    assert touched == [(7, "minicluster-cuda")] and capsys.readouterr().err == ""


def test_without_a_gpu_nothing_is_touched(
    touched: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    context = device.CudaContext()
    context.begin()
    context.ready()
    assert touched == [] and device.choose(0, 1) == "gloo"
