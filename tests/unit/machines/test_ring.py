"""The history of a machine on disk: levels, restarts, changed fields, damaged files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minicluster_hub.machines.cells import Cell, merged
from minicluster_hub.machines.ring import LEVELS, Level, Ring, fields_of

SMALL = (Level(2, 10), Level(10, 6))
START = 1_800_000_000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.ring"


def means(ring: Ring, low: float, high: float, points: int = 100, now: float | None = None) -> list[float]:
    found = ring.read(["cpu"], low, high, points, high if now is None else now)
    return [cell.mean for cell in found.fields["cpu"]]


def test_readings_of_an_interval_are_one_mean_and_one_maximum(path: Path) -> None:
    ring = Ring(path, ["cpu", "memory"], SMALL)
    ring.add(START, {"cpu": 10.0, "memory": 5.0})
    ring.add(START + 1.9, {"cpu": 30.0})
    ring.add(START + 2.0, {"cpu": 50.0, "memory": float("nan")})
    found = ring.read(["cpu", "memory"], START, START + 4, 100, START + 4)
    assert (found.step_s, found.at) == (2.0, (START, START + 2))
    assert found.fields["cpu"] == [Cell(20.0, 30.0, 2.0), Cell(50.0, 50.0, 1.0)]
    assert found.fields["memory"] == [Cell(5.0, 5.0, 1.0), Cell()], "a missing value is none, not 0"


def test_older_times_are_read_from_a_coarser_level(path: Path) -> None:
    ring = Ring(path, ["cpu"], SMALL)
    for second in range(0, 60, 2):
        ring.add(START + second, {"cpu": float(second)})
    now = START + 58
    assert means(ring, now - 18, now, now=now) == [float(second) for second in range(40, 60, 2)]
    assert means(ring, START, now, now=now) == [4.0, 14.0, 24.0, 34.0, 44.0, 54.0]
    assert means(ring, START - 1e6, now, now=now)[-1] == 54.0, "only what is kept"


def test_a_gap_is_empty_and_the_old_turn_of_the_ring_is_not_shown(path: Path) -> None:
    ring = Ring(path, ["cpu"], SMALL)
    for second in range(0, 20, 2):
        ring.add(START + second, {"cpu": 1.0})
    ring.add(START + 30, {"cpu": 2.0})
    now = START + 30
    found = ring.read(["cpu"], now - 18, now, 100, now)
    assert found.at == (START + 12, START + 14, START + 16, START + 18, START + 30)


def test_few_points_join_intervals(path: Path) -> None:
    ring = Ring(path, ["cpu"], SMALL)
    for second in range(0, 20, 2):
        ring.add(START + second, {"cpu": float(second)})
    found = ring.read(["cpu"], START, START + 18, 5, START + 18)
    assert found.step_s == 4.0
    assert [cell.high for cell in found.fields["cpu"]] == [2.0, 6.0, 10.0, 14.0, 18.0]


def test_a_restart_goes_on_in_the_same_interval(path: Path) -> None:
    ring = Ring(path, ["cpu"], SMALL)
    ring.add(START, {"cpu": 10.0})
    ring.close()
    again = Ring(path, ["cpu"], SMALL)
    again.add(START + 1, {"cpu": 20.0})
    again.add(START - 5, {"cpu": 99.0})  # A late one, of an interval that is over.
    assert means(again, START - 10, START + 2) == [15.0]


def test_a_new_field_keeps_the_history_of_the_others(path: Path) -> None:
    ring = Ring(path, ["cpu", "old"], SMALL)
    ring.add(START, {"cpu": 10.0, "old": 1.0})
    ring.close()
    more = Ring(path, ["gpu0", "cpu"], SMALL)
    more.add(START + 2, {"gpu0": 7.0, "cpu": 11.0})
    assert means(more, START, START + 2) == [10.0, 11.0]
    assert fields_of(path) == ("gpu0", "cpu")
    assert not list(path.parent.glob("*.new"))


@pytest.mark.parametrize("content", [b"", b"{", b"null", b'{"fields": 3}', os.urandom(5000)])
def test_a_damaged_file_is_made_anew(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    ring = Ring(path, ["cpu"], SMALL)
    ring.add(START, {"cpu": 10.0})
    assert means(ring, START, START + 2) == [10.0]


def test_the_file_has_its_size_from_the_start_and_keeps_it(path: Path) -> None:
    ring = Ring(path, ["cpu"])
    size = path.stat().st_size
    assert path.stat().st_blocks * 512 >= size, "the space is taken, not only promised"
    assert size < 300_000
    for minute in range(0, 60 * 24 * 30, 7):
        ring.add(START + minute * 60, {"cpu": 1.0})
    assert path.stat().st_size == size
    spans = [level.span_s for level in LEVELS]
    assert all(span > least for span, least in zip(spans, (3600, 2 * 86400, 14 * 86400), strict=True))


def test_cells_of_unequal_weight_are_merged_by_their_counts() -> None:
    row = merged([[Cell(10.0, 12.0, 3.0)], [Cell()], [Cell(20.0, 20.0, 1.0)]])
    assert row == [Cell(12.5, 20.0, 4.0)]
