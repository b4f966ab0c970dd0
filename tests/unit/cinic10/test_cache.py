"""The loader's file of decoded images: created once, shared, and recreated if needed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils.data import DataLoader

from .pictures import cinic10_data, picture, planes
from .pictures import root as root


def test_files_are_decoded_once_and_again_when_one_changes(root: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = cinic10_data.Images(root, "train", cache=cache)
    (made,) = cache.iterdir()
    assert made.stat().st_size == len(first) * 3 * 32 * 32
    # The next loader reads that file, so a change by hand shows.
    made.write_bytes(b"\7" * made.stat().st_size)
    assert cinic10_data.Images(root, "train", cache=cache)[0][0].unique().tolist() == [7]
    path = root / "train" / "airplane" / "cifar10-train-1.png"
    fact = path.stat()
    picture(999).save(path)
    os.utime(path, ns=(fact.st_atime_ns, fact.st_mtime_ns))
    assert torch.equal(cinic10_data.Images(root, "train", cache=cache)[0][0], planes(picture(999)))


def test_two_data_sets_with_the_same_names_and_times_are_kept_apart(root: Path, tmp_path: Path) -> None:
    other = root.with_name("other")
    shutil.copytree(root, other)
    cache = tmp_path / "cache"
    cinic10_data.Images(root, "train", cache=cache)
    cinic10_data.Images(other, "train", cache=cache)
    assert len(list(cache.iterdir())) == 2


def test_ranks_that_come_at_once_share_one_file(root: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=cinic10_data.Images, args=(root, "train", cache)) for _ in range(3)]
    with cache_held(cache):
        for rank in ranks:
            rank.start()
        while waiting_for(cache) < len(ranks):
            assert all(rank.is_alive() for rank in ranks), "a rank did not wait"
            time.sleep(0.01)
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0, 0, 0]
    (made,) = cache.iterdir()
    before = made.stat()
    assert len(cinic10_data.Images(root, "train", cache=cache)) == 12
    assert made.stat().st_ino == before.st_ino


def waiting_for(folder: Path) -> int:
    """Return how many processes wait for the lock of a folder."""
    waiting = [line for line in Path("/proc/locks").read_text().splitlines() if "-> FLOCK" in line]
    return sum(f":{folder.stat().st_ino} " in line for line in waiting)


@contextmanager
def cache_held(cache: Path) -> Iterator[None]:
    """Lock a cache, as the decoding rank does."""
    # Use a separate process, since forked children of this one would hold the lock, too.
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), 2); print(flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(cache)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin and holder.stdout
    holder.stdout.readline()
    yield
    holder.communicate(b"\n")


def test_processes_that_are_killed_leave_no_gap(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, real = os.getpid(), cinic10_data.decode

    def dying(folder: Path, names: Sequence[str]) -> npt.NDArray[np.uint8]:
        if os.getpid() != ours:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(folder, names)

    monkeypatch.setattr(cinic10_data, "decode", dying)
    kept = cinic10_data.Images(root, "train", cache=tmp_path / "cache")
    plain = cinic10_data.Images(root, "train", cache=False)
    assert all(torch.equal(kept[index][0], plain[index][0]) for index in range(12))


def test_without_room_for_the_cache_files_are_decoded_anew(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where a folder should be")
    with pytest.warns(UserWarning, match="decoded anew.*cannot.*cache=FOLDER"):
        images = cinic10_data.Images(root, "train", cache=tmp_path / "file")
    assert len(list(DataLoader(images, batch_size=4))) == 3


def test_the_default_cache_of_a_rank_is_its_tasks_own(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    cinic10_data.Images(root, "train")
    assert len(list((tmp_path / "home" / "minicluster" / "images").iterdir())) == 1
    monkeypatch.setenv("MINICLUSTER_SCRATCH", str(tmp_path / "task"))
    cinic10_data.Images(root, "train")
    assert len(list((tmp_path / "task" / "images").iterdir())) == 1
