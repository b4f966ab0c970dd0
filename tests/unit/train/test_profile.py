"""From a profile's spans to where the time went."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import minicluster as mc
from minicluster.train.calls import WrongCall
from minicluster.train.metrics import step_times
from minicluster.train.metrics.profile import profile_next
from minicluster.train.metrics.profile_times import Part, length, merged, part_of, times

from .conftest import Read

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8)


def test_communication_counts_where_no_computing_hides_it() -> None:
    compute, wait = [(0.0, 40.0), (30.0, 50.0)], [(60.0, 90.0)]
    spans = {Part.COMPUTE: compute, Part.COMMUNICATION: [(40.0, 70.0)], Part.DATA: wait}
    found = times(spans, 0.0, 100.0, 2, on_gpu=True)
    assert found.parts == {Part.COMPUTE: 50, Part.COMMUNICATION: 20, Part.DATA: 20, Part.IDLE: 10}
    assert found.rows()[0] == ("computing", 0.025, 0.5)
    assert found.sentence().startswith("Most of the time, 50%, is computing.")


def test_on_a_cpu_what_makes_the_samples_is_waiting_for_data() -> None:
    spans = {Part.COMPUTE: [(0.0, 90.0)], Part.DATA: [(0.0, 60.0)]}
    assert times(spans, 0.0, 100.0, 1, on_gpu=False).parts[Part.DATA] == 60


@given(st.fixed_dictionaries({part: SPANS for part in Part}), st.booleans())
def test_the_parts_are_the_whole(spans, on_gpu: bool) -> None:
    found = times(spans, 10.0, 40.0, 1, on_gpu=on_gpu)
    assert sum(found.parts.values()) == pytest.approx(30.0)
    assert all(us >= 0 for us in found.parts.values())


@given(SPANS)
def test_merged_spans_do_not_overlap(spans) -> None:
    found = merged(spans)
    assert length(found) == len({at for begin, end in spans for at in range(begin, end)})
    assert all(before[1] < after[0] for before, after in pairwise(found))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("aten::mm", Part.COMPUTE),
        ("gloo:all_reduce", Part.COMMUNICATION),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", Part.COMMUNICATION),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", Part.DATA),
    ],
)
def test_names_say_what_an_operation_is_for(name: str, part: Part) -> None:
    assert part_of(name) is part


@pytest.mark.parametrize("steps", [0, 1001, "10"])
def test_a_profile_has_some_steps(steps: object) -> None:
    with pytest.raises(WrongCall, match="takes 1 to 1000 steps"):
        mc.profile(steps=steps)  # type: ignore[arg-type]


def test_a_request_during_another_is_profiled_after_it(
    records: Read, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINICLUSTER_OUTPUT", str(tmp_path))
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    profile_next(2)
    profile_next(3)
    while step_times.watchers:
        for watcher in tuple(step_times.watchers):
            watcher(optimizer)
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Profile of")]
    assert heads == ["Profile of 2 steps on rank 0:", "Profile of 3 steps on rank 0:"]
    assert len(records()) == 2 * 2
    traces = {path.name for path in tmp_path.iterdir()}
    assert traces == {"profile-rank-0.json.gz", "profile-rank-0-2.json.gz"}
