"""Snapshots without ranks: complete or absent, when they are due, as a stream, and in orders."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import minicluster as mc
from minicluster.train.snapshots import session, state
from minicluster.train.snapshots.divided import PartsWriter, is_uploading
from minicluster.train.snapshots.session import SnapshotSchedule
from minicluster.train.snapshots.state import Parts, SnapshotImpossible
from minicluster.train.snapshots.store import (
    DIVIDED_REST,
    Archive,
    SnapshotNotKept,
    SnapshotStore,
    StoredSnapshot,
)


@pytest.fixture
def snapshot_store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore((tmp_path / "memory", tmp_path / "disk"))


def keep(
    snapshot_store: SnapshotStore, step: int, attempt: int = 1, data: bytes = b"data", keep: int = 2
) -> None:
    with snapshot_store.adding((attempt, step), 2, keep, len(data)) as folder:
        (folder / "part").write_bytes(data + str(step).encode())


def steps(snapshot_store: SnapshotStore) -> list[int]:
    return [entry.step for entry in snapshot_store.entries()]


# The store.


def test_the_newest_are_kept_and_a_later_attempt_is_newer_whatever_its_step(
    snapshot_store: SnapshotStore,
) -> None:
    for step in (10, 20, 30):
        keep(snapshot_store, step)
    assert steps(snapshot_store) == [30, 20]
    keep(snapshot_store, 5, attempt=2)
    assert steps(snapshot_store) == [5, 30]
    keep(snapshot_store, 6, attempt=2, keep=1)
    assert steps(snapshot_store) == [6]


def test_what_fails_in_the_middle_leaves_those_before(snapshot_store: SnapshotStore, tmp_path: Path) -> None:
    keep(snapshot_store, 10)
    with pytest.raises(OSError, match="disk"), snapshot_store.adding((1, 20), 2, 2, 4) as folder:
        (folder / "part").write_bytes(b"half")
        raise OSError("the disk broke")
    assert steps(snapshot_store) == [10]
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["attempt-1-step-10"]


def test_the_same_step_again_takes_the_place_of_the_first(snapshot_store: SnapshotStore) -> None:
    keep(snapshot_store, 10, data=b"first")
    keep(snapshot_store, 10, data=b"second")
    (entry,) = snapshot_store.entries()
    assert (entry.folder / "part").read_bytes() == b"second10"
    assert entry.is_whole()


def test_a_damaged_one_is_passed_over_and_removed(snapshot_store: SnapshotStore) -> None:
    keep(snapshot_store, 10)
    keep(snapshot_store, 20)
    (snapshot_store.entries()[0].folder / "part").write_bytes(b"dAta20")
    newest = snapshot_store.newest()
    assert newest is not None
    assert newest.step == 10
    assert steps(snapshot_store) == [10]


@pytest.mark.parametrize("text", ["", "[]", '{"step": 1}', '{"more": 1}'])
def test_a_folder_without_a_right_manifest_is_no_snapshot(
    snapshot_store: SnapshotStore, tmp_path: Path, text: str
) -> None:
    keep(snapshot_store, 10)
    (tmp_path / "memory" / "attempt-1-step-10" / "manifest.json").write_text(text)
    assert steps(snapshot_store) == []


def test_without_room_anywhere_nothing_is_kept(snapshot_store: SnapshotStore) -> None:
    keep(snapshot_store, 10)
    keep(snapshot_store, 20)
    with pytest.raises(SnapshotNotKept, match="has no room"), snapshot_store.adding((1, 30), 1, 2, 1 << 60):
        pass
    # The newest stays; the others were removed, but do not free enough space.
    assert steps(snapshot_store) == [20]


WRITER = """
import itertools, sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from minicluster.train.snapshots.store import SnapshotStore
shelf = SnapshotStore((Path(sys.argv[1]),))
for step in itertools.count(1):
    with shelf.adding((1, step), 1, 2, 400_000) as folder:
        for name in "abcd":
            (folder / name).write_bytes(bytes([step % 256]) * 100_000)
    print(step, flush=True)
"""


def test_a_kill_at_any_moment_leaves_whole_snapshots(tmp_path: Path) -> None:
    moments = random.Random(1)
    for number in range(8):
        folder = tmp_path / str(number)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        last = 0
        for _ in range(moments.randint(1, 30)):
            last = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        entries = SnapshotStore((folder,)).entries()
        assert entries[0].step >= last
        assert all(entry.is_whole() for entry in entries)


# The archive as one stream.


def test_an_archive_is_a_tar_file_that_another_node_takes_in(
    snapshot_store: SnapshotStore, tmp_path: Path
) -> None:
    keep(snapshot_store, 10, data=os.urandom(3_000_000))
    (entry,) = snapshot_store.entries()
    with Archive(entry) as archive:
        shutil.rmtree(entry.folder)  # Open files stay readable.
        data = b"".join(archive.pieces())
        assert len(data) == archive.size_bytes
        assert hashlib.sha256(data).hexdigest() == archive.sha256()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["manifest.json", "part"]
    (tmp_path / "came.tar").write_bytes(data)
    other = SnapshotStore((tmp_path / "other",))
    taken = other.adopt(tmp_path / "came.tar")
    assert taken.is_whole()
    assert (taken.key, taken.size_bytes) == (entry.key, entry.size_bytes)


def test_an_archive_that_came_damaged_is_refused(snapshot_store: SnapshotStore, tmp_path: Path) -> None:
    keep(snapshot_store, 10, data=b"x" * 5000)
    with Archive(snapshot_store.entries()[0]) as archive:
        data = bytearray(b"".join(archive.pieces()))
    data[-3000] ^= 1
    (tmp_path / "came.tar").write_bytes(data)
    other = SnapshotStore((tmp_path / "other",))
    with pytest.raises(SnapshotNotKept, match="damaged"):
        other.adopt(tmp_path / "came.tar")
    assert other.entries() == []


@pytest.mark.parametrize("name", ["../part", "/part", "sub/part", ".."])
def test_an_archive_writes_nowhere_else(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "came.tar", "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 4
        tar.addfile(member, io.BytesIO(b"evil"))
    other = SnapshotStore((tmp_path / "other",))
    with pytest.raises(SnapshotNotKept):
        other.adopt(tmp_path / "came.tar")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "came.tar"]


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "came.tar").write_bytes(b"<html>away</html>")
    with pytest.raises(SnapshotNotKept, match="damaged"):
        SnapshotStore((tmp_path / "other",)).adopt(tmp_path / "came.tar")


# The state.


def test_a_state_comes_back_with_all_its_forms(tmp_path: Path) -> None:
    tied = torch.randn(3, 4).t()
    values = {
        "state": {0: {"step": torch.tensor(3.0), "moment": tied}, 7: {}},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 7]}],
        "none": None,
        "half": torch.ones(2, dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
    }
    parts = Parts(values)
    state.write_files(tmp_path, parts.tensors, parts.rest)
    tensors, rest = state.read_files(tmp_path)
    back = state.put_together(rest, tensors)
    assert back["groups"] == values["groups"]
    assert (back["none"], back["state"][7], list(back["state"])) == (None, {}, [0, 7])
    assert torch.equal(back["state"][0]["moment"], tied)
    assert back["half"].dtype is torch.bfloat16
    assert back["empty"].shape == (0, 3)


def test_copies_are_apart_from_the_training_and_used_again() -> None:
    stage, live = state.StagingBuffers(), {"w": torch.zeros(3)}
    first = stage.copy(live)["w"]
    live["w"].add_(1)
    assert first.tolist() == [0, 0, 0]
    assert stage.copy(live)["w"] is first
    assert first.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"step": 1.5}, r"mc\.checkpoint\(step=1\.5\) takes a whole number from 0 on"),
        ({"step": 1, "every": 0}, "every=0"),
        ({"step": 1, "keep": 0}, "keep=0"),
    ],
)
def test_checkpoint_says_what_it_takes(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SnapshotImpossible, match=message):
        mc.checkpoint(torch.nn.Linear(1, 1), **wrong)  # type: ignore[arg-type]


def test_what_has_no_state_is_refused_by_name() -> None:
    with pytest.raises(SnapshotImpossible, match=r"best \(float\) cannot be saved"):
        state.state_of("best", 0.5)


def test_outside_of_a_job_nothing_happens() -> None:
    model = torch.nn.Linear(1, 1)
    assert mc.resume(model) == 0
    mc.checkpoint(model, step=1)


# The schedule.


def run(step_s: float, steps: int, cost_s: float) -> list[float]:
    """Return the times of snapshots in a run, each of which costs `cost_s`."""
    pacer, now, plan_at, taken = SnapshotSchedule(0.0), 0.0, 1, []
    for call in range(1, steps + 1):
        now += step_s
        if call >= plan_at:
            plan = pacer.plan(call, now, 1000)
            plan_at = plan.plan_at
            assert plan_at > call
            if plan.take:
                taken.append(now)
                now += cost_s
                pacer.cost_s = cost_s
    return taken


@given(st.floats(0.0005, 5.0), st.floats(0.001, 1.0), st.integers(50, 3000))
def test_snapshots_stay_below_their_share_of_the_time(step_s: float, cost_s: float, steps: int) -> None:
    taken = run(step_s, steps, cost_s)
    waits = [later - earlier for earlier, later in pairwise(taken)]
    assert all(wait >= cost_s / session.SHARE - step_s for wait in waits)


def test_a_long_run_has_a_snapshot_each_interval() -> None:
    taken = run(step_s=0.01, steps=20_000, cost_s=0.05)
    waits = [later - earlier for earlier, later in pairwise(taken[1:])]
    assert waits
    assert max(waits) < 1.2 * 0.05 / session.SHARE


def test_where_a_step_is_an_epoch_each_is_kept() -> None:
    assert run(step_s=60.0, steps=4, cost_s=0.1) == pytest.approx([60.0, 120.1, 180.2, 240.3])


def test_an_archive_writes_nothing_outside_of_its_folder(
    snapshot_store: SnapshotStore, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        info = tarfile.TarInfo("../outside")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"bad"))
    with pytest.raises(SnapshotNotKept):
        snapshot_store.adopt(tmp_path / "evil.tar")
    assert not list(tmp_path.rglob("outside"))


# Parts of a divided model's snapshots.


def keep_part(
    snapshot_store: SnapshotStore, step: int, part: int, *, parts: int = 2, due: bool = False
) -> None:
    folder = snapshot_store.folder_for_part((1, step), 100)
    entry = StoredSnapshot(folder, step, 1, 4, 1, {}, part, parts, due)
    with snapshot_store.adding_part(entry):
        (folder / f"__{part}_0.distcp").write_bytes(b"data")
        (folder / DIVIDED_REST).write_bytes(b"rest")


def test_parts_are_kept_beside_each_other_and_those_before_until_all_nodes_have_theirs(
    snapshot_store: SnapshotStore,
) -> None:
    for step in (10, 20, 30):
        keep_part(snapshot_store, step, 0)
        keep_part(snapshot_store, step, 1)
    found = [(entry.step, entry.part, entry.parts) for entry in snapshot_store.entries()]
    assert sorted(found) == [(20, 0, 2), (20, 1, 2), (30, 0, 2), (30, 1, 2)]
    assert snapshot_store.newest() is None, "no part is a snapshot by itself"
    second = snapshot_store.find((1, 30), 1)
    assert second is not None
    assert second.names == ("manifest.json", "__1_0.distcp", DIVIDED_REST)


def test_a_part_that_is_due_stays_until_the_next_one_is(snapshot_store: SnapshotStore) -> None:
    keep_part(snapshot_store, 10, 0, due=True)
    for step in (20, 30, 40):
        keep_part(snapshot_store, step, 0)
    assert steps(snapshot_store) == [40, 30, 10]
    keep_part(snapshot_store, 50, 0, due=True)
    assert steps(snapshot_store) == [50, 40]


def test_a_part_travels_as_an_archive(snapshot_store: SnapshotStore, tmp_path: Path) -> None:
    keep_part(snapshot_store, 10, 1, due=True)
    (entry,) = snapshot_store.entries()
    with Archive(entry) as archive:
        (tmp_path / "came.tar").write_bytes(b"".join(archive.pieces()))
    taken = SnapshotStore((tmp_path / "other",)).adopt(tmp_path / "came.tar")
    assert (taken.key, taken.part, taken.parts, taken.due) == ((1, 10), 1, 2, True)
    assert taken.is_whole()


def test_what_killed_ranks_left_is_removed_by_the_next_part(
    snapshot_store: SnapshotStore, tmp_path: Path
) -> None:
    left = snapshot_store.folder_for_part((1, 10), 100)
    (left / "half").write_bytes(b"half")
    keep_part(snapshot_store, 20, 0)
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["attempt-1-step-20-part-0"]


def test_the_next_part_is_due_when_the_one_before_it_is_in_the_storage_or_lost(
    snapshot_store: SnapshotStore,
) -> None:
    writer = PartsWriter()
    here: Any = SimpleNamespace(parts_writer=writer, snapshot_store=snapshot_store)
    assert not is_uploading(here)
    keep_part(snapshot_store, 10, 0, due=True)
    writer.due = (1, 10)
    assert is_uploading(here)
    snapshot_store.mark_stored((1, 10))
    assert not is_uploading(here)
    writer.due = (1, 20)
    assert not is_uploading(here), "it could not be written"


def test_a_part_is_no_snapshot_of_a_whole_model(snapshot_store: SnapshotStore) -> None:
    keep_part(snapshot_store, 10, 0, parts=1)
    assert snapshot_store.newest() is None
    (entry,) = snapshot_store.entries()
    (entry.folder / DIVIDED_REST).write_bytes(b"damaged")
    snapshot_store.remove_damaged()
    assert not snapshot_store.entries()
