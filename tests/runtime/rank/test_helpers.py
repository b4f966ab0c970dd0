"""mc.* outside of a job, and its refusals. No process group, no agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import minicluster as mc
from minicluster.train.calls import WrongCall
from minicluster.train.loaders import LoaderNotDivisible, SharedLoader, share
from minicluster.train.metrics.log import NotANumber
from minicluster.train.prepare import NotPreparable
from minicluster.wire import Record


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = "import sys, minicluster; print({'torch', 'httpx', 'pydantic'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"


def test_an_unknown_helper_lists_those_that_are_there() -> None:
    with pytest.raises(AttributeError, match=r"'prepair'.*checkpoint, clip_grad_norm_, comm, data, device"):
        mc.prepair  # noqa: B018


def test_the_package_shows_what_may_be_called_and_nothing_else() -> None:
    mc.prepare  # noqa: B018 - what is imported by then is not shown either
    assert dir(mc) == sorted(mc.__all__)


@pytest.mark.parametrize(
    ("call", "like"),
    [
        (lambda: mc.log("loss", 0.5), "mc.log(step=step, loss=loss)"),
        (lambda: mc.log([0.5]), 'mc.log({"loss": loss}, step=step)'),
        (lambda: mc.log(0.5), "mc.log(step=step, loss=loss)"),
        (lambda: mc.prepare(), "mc.prepare(model, optimizer, loader)"),
        (lambda: mc.prepare(1, 2, 3, 4), "mc.prepare(model, optimizer, loader)"),
        (lambda: mc.progress(5), "for batch in mc.progress(loader):"),
        (lambda: mc.progress(), "for batch in mc.progress(loader):"),
        (lambda: mc.checkpoint(torch.nn.Linear(1, 1)), "mc.checkpoint(model, optimizer, loader, step=step)"),
        (lambda: mc.resume(), "step = mc.resume(model, optimizer, loader)"),
        (lambda: mc.data(), 'mc.data("cinic10")'),
        (lambda: mc.data(3), 'mc.data("cinic10")'),
        (lambda: mc.rank(0), "mc.rank()"),
        (lambda: mc.output("x"), "mc.output()"),
    ],
)
def test_a_wrong_call_says_what_is_expected(call: Any, like: str) -> None:
    with pytest.raises(WrongCall) as caught:
        call()
    assert like in caught.value.hint
    assert isinstance(caught.value, TypeError)


def test_outside_of_a_job_there_is_one_rank() -> None:
    assert (mc.rank(), mc.local_rank(), mc.world_size()) == (0, 0, 1)
    assert isinstance(mc.device(), torch.device)


def test_prepare_returns_as_many_as_it_was_given() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.zeros(4, 1)))
    assert mc.prepare(model) is model
    assert mc.prepare(model, optimizer) == (model, optimizer)
    prepared, shared = mc.prepare(model, loader=loader)
    assert prepared is model
    assert [batch.tolist() for (batch,) in shared] == [batch.tolist() for (batch,) in loader]
    assert mc.prepare(model, optimizer, shared) == (model, optimizer, shared)


def test_prepare_says_what_belongs_where() -> None:
    model = torch.nn.Linear(1, 1)
    loader = DataLoader(TensorDataset(torch.zeros(4, 1)))
    with pytest.raises(NotPreparable, match=r"an optimizer .* in the second place, not DataLoader"):
        mc.prepare(model, loader)  # type: ignore[call-overload]


class Numbers(IterableDataset[int]):
    def __iter__(self):
        return iter(range(3))


class EverySecond(Sampler[int]):
    def __iter__(self):
        return iter(range(0, 4, 2))


DATA = TensorDataset(torch.zeros(4, 1))
NOT_DIVISIBLE = {
    "an IterableDataset": lambda: DataLoader(Numbers()),
    "the sampler EverySecond": lambda: DataLoader(DATA, sampler=EverySecond()),
    "the batch sampler list": lambda: DataLoader(DATA, batch_sampler=[[0, 1], [2]]),
    "the sampler BatchSampler": lambda: DataLoader(
        DATA, batch_size=None, sampler=BatchSampler(RandomSampler(DATA), 2, False)
    ),
}


@pytest.mark.parametrize("words", NOT_DIVISIBLE)
@pytest.mark.parametrize("fault_tolerant", [False, True])
def test_loaders_that_cannot_be_divided_are_refused(
    monkeypatch: pytest.MonkeyPatch, words: str, fault_tolerant: bool
) -> None:
    loader = NOT_DIVISIBLE[words]()
    if fault_tolerant:  # Other ranks may join, so even a single rank's loader is changed.
        monkeypatch.setenv("MINICLUSTER_LIGHTHOUSE", "127.0.0.1:1")
    else:
        assert share(loader) is loader
        monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LoaderNotDivisible, match=words):
        share(loader)


def test_a_distributed_sampler_has_no_place_where_ranks_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0))
    assert share(loader) is loader
    monkeypatch.setenv("MINICLUSTER_LIGHTHOUSE", "127.0.0.1:1")
    with pytest.raises(LoaderNotDivisible, match="the sampler DistributedSampler"):
        share(loader)


def test_a_shared_loader_keeps_its_options_and_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    data = TensorDataset(torch.arange(8))
    shared = share(DataLoader(data, batch_size=2, drop_last=True))
    assert isinstance(shared, SharedLoader)
    assert (shared.batch_size, shared.drop_last) == (2, True)
    assert [batch.tolist() for (batch,) in shared] == [[1, 3], [5, 7]]
    assert share(shared) is shared


@pytest.mark.parametrize("value", ["much", [1, 2], torch.zeros(2), None])
def test_log_refuses_what_is_no_number(value: object) -> None:
    with pytest.raises(NotANumber, match=r"mc\.log\(loss=\.\.\.\)"):
        mc.log(loss=value)


def test_records_are_lines_of_the_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_fd, write_fd = os.pipe()
    monkeypatch.setenv("MINICLUSTER_RECORDS_FD", str(write_fd))
    mc.log(step=1, loss=torch.tensor([2.0]), worst=float("inf"))
    mc.log({"train/loss": 3, "step": 2})
    list(mc.progress(range(5), label="epoch"))
    os.close(write_fd)
    with os.fdopen(read_fd) as lines:
        records = [Record.model_validate_json(line) for line in lines]
    assert records[0].values == {"loss": 2.0, "worst": float("inf")}
    assert (records[1].step, records[1].values) == (2.0, {"train/loss": 3.0})
    # A slow machine sends more records in between.
    assert [(record.done, record.total) for record in (records[2], records[-1])] == [(0, 5), (5, 5)]


def test_a_descriptor_that_is_no_pipe_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "mine.txt").open("w") as file:
        monkeypatch.setenv("MINICLUSTER_RECORDS_FD", str(file.fileno()))
        mc.log(loss=1.0)
    assert (tmp_path / "mine.txt").read_text() == ""


def test_progress_tells_its_last_state_when_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    read_fd, write_fd = os.pipe()
    monkeypatch.setenv("MINICLUSTER_RECORDS_FD", str(write_fd))
    bar = mc.progress(iter("abc"))
    assert next(bar) == "a"
    assert next(bar) == "b"
    bar.close()  # type: ignore[attr-defined]
    os.close(write_fd)
    with os.fdopen(read_fd) as lines:
        last = json.loads(lines.readlines()[-1])
    assert last["done"] == 1
    assert "total" not in last
