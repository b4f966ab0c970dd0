"""mc.log: names, positions, and values that a GPU has not computed yet. A pipe stands for the agent."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import minicluster as mc
from minicluster.train.metrics import pending, sending
from minicluster.train.metrics.log import NotANumber
from minicluster.wire import METRIC_CHARS, Record

from .conftest import Read


def test_dicts_within_dicts_have_names_with_slashes(records: Read) -> None:
    mc.log({"train": {"loss": 1, "by": {"head": torch.tensor(2.0)}}, "lr": np.float32(0.5)}, step=3)
    (record,) = records()
    assert (record.step, record.values) == (3.0, {"train/loss": 1.0, "train/by/head": 2.0, "lr": 0.5})


def test_names_over_epochs_have_the_epoch_as_their_position(records: Read) -> None:
    mc.log({"epoch/accuracy": 0.9, "loss": 0.1}, step=500, epoch=2)
    mc.log(epoch=3, loss=0.1)
    over_steps, over_epochs, counted = records()
    assert (over_steps.step, over_steps.values) == (500.0, {"loss": 0.1, "epoch": 2.0})
    assert (over_epochs.step, over_epochs.values) == (2.0, {"epoch/accuracy": 0.9})
    assert (counted.step, counted.values) == (None, {"epoch": 3.0, "loss": 0.1})


def test_a_line_by_hand_is_the_messages_own(records: Read) -> None:
    values = {
        'quote " and \\': 1.5,
        "ü/☃": float("nan"),
        "up": float("inf"),
        "down": -float("inf"),
        "e": 1e-30,
    }
    line = sending.log_line(2, 1.25, 7.0, values)
    record = Record.model_validate_json(line)
    message = Record(kind="log", rank=2, at=1.25, step=7.0, values=values)
    assert record.model_dump_json() == message.model_dump_json()
    assert line.count(b"\n") == 1


@pytest.mark.parametrize("name", ["", "x" * (METRIC_CHARS + 1)])
def test_a_name_has_some_characters(name: str) -> None:
    with pytest.raises(NotANumber, match="names of 1 to 200 characters"):
        mc.log({name: 1.0})


def test_a_dict_that_holds_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["more"] = endless
    with pytest.raises(NotANumber, match="dicts within each other"):
        mc.log(endless)


def test_many_names_make_several_records(records: Read) -> None:
    mc.log({f"layer-{number}": number for number in range(2500)}, step=1)
    found = records()
    assert [len(record.values) for record in found] == [1000, 1000, 500]
    assert {record.step for record in found} == {1.0}


def test_numbers_come_soon_without_a_further_call(monkeypatch: pytest.MonkeyPatch) -> None:
    read_fd, write_fd = os.pipe()
    monkeypatch.setenv("MINICLUSTER_RECORDS_FD", str(write_fd))
    for step in range(100):
        mc.log(step=step, loss=0.5)
    data = b""
    while data.count(b"\n") < 100:
        data += os.read(read_fd, 1 << 16)
    steps = [Record.model_validate_json(line).step for line in data.splitlines()]
    assert steps == list(range(100))
    os.close(read_fd)
    os.close(write_fd)


def test_a_forked_childs_numbers_are_written_at_once(records: Read) -> None:
    child = os.fork()
    if child == 0:
        mc.log(step=1, loss=0.5)
        mc.log(step=2, loss=0.5)
        os._exit(0)
    os.waitpid(child, 0)
    assert [record.step for record in records()] == [1.0, 2.0]


def test_a_value_is_read_at_the_call(records: Read) -> None:
    loss = torch.tensor(1.0)
    mc.log(loss=loss)
    loss.fill_(7.0)
    assert records()[0].values == {"loss": 1.0}


class FromDevice:
    """Numbers that a device computes later: no GPU is needed to see in which order they are sent."""

    def __init__(self, **numbers: float) -> None:
        self.computed = threading.Event()
        self._numbers = numbers

    def ready(self) -> bool:
        return self.computed.is_set()

    def numbers(self) -> Mapping[str, float]:
        return self._numbers


class Broken(FromDevice):
    def ready(self) -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")


def logged(step: int, *readings: FromDevice, **values: float | None) -> None:
    pending.add(pending.Entry(0, 1.0, float(step), values, readings))


def test_values_of_a_device_come_in_the_order_of_the_calls(records: Read) -> None:
    first, second = FromDevice(loss=0.1), FromDevice(loss=0.3)
    logged(1, first, loss=None, lr=0.5)
    logged(2, loss=0.2)
    logged(3, second, loss=None)
    second.computed.set()
    assert records() == []
    first.computed.set()
    assert pending.queue.finish() == 0
    found = records()
    assert [record.values["loss"] for record in found] == [0.1, 0.2, 0.3]
    assert list(found[0].values) == ["loss", "lr"]


def test_values_of_a_device_come_without_a_further_call(records: Read) -> None:
    reading = FromDevice(loss=0.1)
    logged(1, reading, loss=None)
    reading.computed.set()
    found: list[Record] = []
    waiting = threading.Event()
    while not found:
        waiting.wait(0.01)
        found = records()
    assert found[0].values == {"loss": 0.1}


def test_the_end_waits_only_for_a_while(records: Read, capsys: pytest.CaptureFixture[str]) -> None:
    logged(1, FromDevice(loss=0.1), loss=None)
    logged(2, loss=0.2)
    assert pending.queue.finish(0.05) == 2
    assert records() == []


def test_after_an_error_of_the_device_logging_goes_on(
    records: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = FromDevice(loss=0.1)
    logged(1, waiting, loss=None)
    logged(2, loss=0.2)
    logged(3, Broken(), loss=None)
    waiting.computed.set()
    logged(4, loss=0.3)
    pending.queue.finish()
    assert [record.step for record in records()] == [1.0, 2.0, 4.0]
    assert "values on the GPU are lost: CUDA error" in capsys.readouterr().err


def test_a_forked_child_sends_nothing_of_its_parent(records: Read) -> None:
    reading = FromDevice(loss=0.1)
    logged(1, reading, loss=None)
    child = os.fork()
    if child == 0:
        reading.computed.set()
        pending.finish()
        os._exit(0)
    os.waitpid(child, 0)
    assert records() == []
