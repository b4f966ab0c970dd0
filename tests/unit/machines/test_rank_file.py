"""The readings of a run's ranks in a file that does not grow with the run's length."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from threading import Lock

import pytest

from minicluster.wire import RankReading
from minicluster_hub.machines.rank_file import INTERVALS, MOST_RANKS, RankFile
from minicluster_hub.machines.run_readings import RunReadings

START = 1_800_000_001.0


@pytest.fixture
def file(tmp_path: Path) -> RankFile:
    return RankFile(tmp_path / "7.readings", Lock())


def add(file: RankFile, after_s: float, rank: int = 0, **values: float) -> None:
    file.add(START + after_s, {rank: values or {"cpu_percent": after_s}})


def test_each_rank_has_its_own_columns_and_only_fields_that_it_reported(file: RankFile) -> None:
    add(file, 0, 1, cpu_percent=50.0, memory_bytes=1e9)
    add(file, 3, 0, cpu_percent=70.0, memory_bytes=2e9, gpu_percent=90.0)
    found = file.read(1000)
    assert list(found) == [0, 1], "the lowest first"
    assert list(found[1].fields) == ["cpu_percent", "memory_bytes"]
    assert list(found[0].fields) == ["cpu_percent", "memory_bytes", "gpu_percent"]
    assert found[1].at == (START - 1,), "intervals begin at even seconds"
    assert found[0].at == (START + 3,)


@pytest.mark.parametrize("length_s", [100, 2 * INTERVALS, 3 * 3600, 9 * 86400])
def test_a_run_of_any_length_is_covered_from_its_beginning(
    file: RankFile, tmp_path: Path, length_s: int
) -> None:
    for after_s in range(0, length_s, max(2, length_s // 500)):
        add(file, after_s, cpu_percent=float(after_s))
    found = file.read(INTERVALS)[0]
    assert abs(found.at[0] - START) <= found.step_s
    assert found.at[-1] + found.step_s >= START + length_s - max(2, length_s // 500) - 1
    assert len(found.at) * found.step_s <= 2 * INTERVALS * found.step_s
    highest = max(cell.high for cell in found.fields["cpu_percent"])
    assert highest == pytest.approx(length_s, rel=0.03)
    assert (tmp_path / "7.readings").stat().st_size < 75_000


def test_a_short_run_takes_little_of_the_disk(file: RankFile, tmp_path: Path) -> None:
    for after_s in range(0, 60, 2):
        add(file, after_s)
    assert (tmp_path / "7.readings").stat().st_blocks * 512 <= 8192


def test_few_points_join_intervals_and_gaps_stay(file: RankFile) -> None:
    for after_s in (0, 2, 4, 6, 40, 42):
        add(file, after_s, cpu_percent=float(after_s))
    found = file.read(6)[0]
    assert found.step_s == 8.0
    assert [cell.mean for cell in found.fields["cpu_percent"]] == [3.0, 41.0]


def test_a_clock_that_was_put_back_and_too_many_ranks_do_no_harm(file: RankFile) -> None:
    add(file, 0)
    add(file, -500)
    assert len(file.read(10)[0].at) == 1
    file.add(START, {rank: {"cpu_percent": 1.0} for rank in range(MOST_RANKS + 20)})
    assert len(file.read(10)) == MOST_RANKS


@pytest.mark.parametrize("content", [b"x", os.urandom(100_000), bytes(100_000)])
def test_a_damaged_file_begins_anew(file: RankFile, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "7.readings").write_bytes(content)
    assert file.read(10) == {}
    add(file, 0, cpu_percent=4.0)
    assert file.read(10)[0].fields["cpu_percent"][0].mean == 4.0


def test_an_agent_can_only_report_its_own_ranks(tmp_path: Path) -> None:
    readings = RunReadings(lambda job_id: tmp_path / f"{job_id}.readings", lambda: START, logging.getLogger())
    sent = [RankReading(rank=rank, cpu_percent=5.0, memory_bytes=9, ago_s=rank) for rank in range(4)]
    readings.receive(7, range(2, 4), sent)
    assert [one.rank for one in readings.read(7, 100)] == [2, 3]
    assert readings.read(8, 100) == ()
