"""The file of a run's series: nothing lost or doubled, and pictures of any range from few rows."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicluster_hub.runs import series as module
from minicluster_hub.runs.series import Batch, SeriesFile, Span, last_values

LOSS = ("loss", 0)


@pytest.fixture
def file(tmp_path):
    return SeriesFile(tmp_path / "runs" / "7.sqlite")


def steps(count, first=0, value=lambda step: 1.0 / (step + 1)):
    return [(float(step), 1000.0 + step, value(step)) for step in range(first, first + count)]


def whole(file, name="loss", **more):
    (curve,) = file.curves(7, [name], Span(**more), 1000)
    return curve


def test_all_points_of_a_short_series_are_in_the_curve(file):
    file.append(Batch(1, {LOSS: steps(3)}))
    curve = whole(file)
    assert curve.step == (0.0, 1.0, 2.0) and curve.at == (1000.0, 1001.0, 1002.0)
    assert curve.value == (1.0, 0.5, 1 / 3) and curve.low == curve.high == ()


def test_a_run_without_records_has_nothing(file):
    assert (file.series(), file.curves(7, ["loss"], Span(), 10), list(file.points())) == ((), [], [])
    assert (file.offsets(), file.dropped()) == ({}, 0)


def test_extremes_survive_in_a_picture_of_many_points(file):
    values = steps(100_000, value=lambda step: {31_415: 99.0, 70_000: -99.0}.get(step, 0.5))
    for first in range(0, 100_000, 7001):
        file.append(Batch(1, {LOSS: values[first : first + 7001]}))
    curve = whole(file)
    assert len(curve.step) <= 1100 and curve.points == 100_000
    assert (max(curve.high), min(curve.low)) == (99.0, -99.0)
    assert curve.step[-1] == 99_999.0 and sorted(curve.step) == list(curve.step)
    (info,) = file.series()
    assert (info.low, info.high, info.points, info.last_step) == (-99.0, 99.0, 100_000, 99_999.0)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 3000),
    cut=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    ends=st.tuples(st.integers(-5, 3005), st.integers(-5, 3005)),
    axis=st.sampled_from(["step", "time"]),
)
def test_a_range_has_exactly_its_points_however_they_came(tmp_path_factory, count, cut, ends, axis):
    file = SeriesFile(tmp_path_factory.mktemp("runs") / "7.sqlite")
    every, first = steps(count), 0
    while first < count:
        for size in cut:
            if first < count:
                file.append(Batch(1, {LOSS: every[first : first + size]}))
                first += size
    low, high = min(ends), max(ends)
    shift = 1000.0 if axis == "time" else 0.0
    (curve,) = file.curves(7, ["loss"], Span(axis, low + shift, high + shift), 5000)
    assert curve.step == tuple(step for step, _, _ in every if low <= step <= high)


def test_not_a_number_and_infinity_are_gaps_in_curves_and_themselves_in_exports(file):
    file.append(Batch(1, {LOSS: [(0.0, 1.0, math.nan), (1.0, 2.0, math.inf), (2.0, 3.0, 4.0)]}))
    assert whole(file).value == (None, None, 4.0)
    values = [value for *_, value in file.points()]
    assert math.isnan(values[0]) and values[1:] == [math.inf, 4.0]


def test_a_new_attempt_replaces_what_it_repeats(file):
    file.append(Batch(1, {LOSS: steps(1000)}))
    file.append(Batch(2, {LOSS: steps(10, first=500, value=lambda _: 7.0)}))
    curve = whole(file)
    assert curve.points == 510 and curve.value[499] == 1 / 500 and set(curve.value[500:]) == {7.0}
    (info,) = file.series()
    assert (info.points, info.last_step, info.high) == (510, 509.0, 7.0)


def test_steps_that_begin_again_in_each_epoch_are_all_kept(file):
    file.append(Batch(1, {LOSS: steps(50)}))
    file.append(Batch(1, {LOSS: steps(50)}))
    assert whole(file).points == 100


def test_points_without_a_step_are_counted(file):
    file.append(Batch(1, {LOSS: [(None, 1.0, 3.0), (None, 2.0, 4.0)]}))
    file.append(Batch(1, {LOSS: [(None, 3.0, 5.0)]}))
    assert whole(file).step == (0.0, 1.0, 2.0)


def test_the_curve_of_a_lost_rank_goes_on_with_the_next(file):
    first = [(float(step), 1000.0 + step, 0.0) for step in range(5)]
    second = [(float(step), 1000.0 + step, 1.0) for step in range(20)]
    file.append(Batch(1, {("loss", 0): first, ("loss", 1): second}))
    assert whole(file).value == (0.0,) * 5 + (1.0,) * 15
    (only,) = file.curves(7, ["loss"], Span(), 1000, rank=0)
    assert only.points == 5
    assert last_values(file.series())["loss"].rank == 1


def test_ranks_that_log_the_same_are_not_mixed(file):
    file.append(Batch(1, {("loss", 0): steps(9, value=lambda _: 0.0), ("loss", 1): steps(9)}))
    assert set(whole(file).value) == {0.0}
    assert [(one.name, one.rank) for one in file.series()] == [("loss", 0), ("loss", 1)]


def test_offsets_are_stored_with_the_points(file):
    file.append(Batch(1, {LOSS: steps(1)}, {"records": 70}))
    file.append(Batch(2, {}, {"records": 5}))
    assert file.offsets() == {(1, "records"): 70, (2, "records"): 5}


def test_a_run_is_bounded_and_says_what_was_dropped(file, monkeypatch):
    monkeypatch.setattr(module, "MOST_RUN_POINTS", 100)
    monkeypatch.setattr(module, "MOST_NAMES", 2)
    file.append(Batch(1, {("a", 0): steps(80), ("b", 0): steps(30), ("c", 0): steps(3)}))
    assert {one.name: one.points for one in file.series()} == {"a": 80, "b": 20}
    assert file.dropped() == 13
