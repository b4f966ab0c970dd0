"""Files of torch.compile as pieces of a cache: what belongs together, what is left out, and the way back."""

import os
import tarfile
import time
from pathlib import Path

import pytest

from minicluster.runtime.agent.files.compiled_files import (
    PieceDamaged,
    drop_unfinished,
    entries_of,
    files_of,
    pack,
    unpack,
)

GRAPH = ("fxgraph/ab/fabc/first", "fxgraph/ab/fabc/second")
KERNEL, LISTED = "24/c244.so", "triton/KEY/__grp__kernel.json"
COMPILED = (*GRAPH, KERNEL, LISTED)
LEFT = (
    "locks/c244.lock",
    "24/c244.lock",
    "24/.77.12.tmp",
    "24/c244_CxxBuild/o.o",
    "triton/KEY/tmp.pid_7_ab/kernel.cubin",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "there"
    for file in (*COMPILED, *LEFT):
        path = made / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"code of " + file.encode())
    (made / KERNEL).chmod(0o755)
    (made / LISTED).write_text(f'{{"kernel.cubin": "{made}/triton/KEY/kernel.cubin"}}')
    return made


def test_locks_and_temporary_files_are_not_compiled_code(folder: Path) -> None:
    assert files_of(folder) == {*COMPILED}
    assert files_of(folder / "nothing") == frozenset()


def test_the_files_of_a_graph_or_kernel_are_one_entry_and_others_one_each() -> None:
    # Two ranks give one graph's files other names.
    files = (*GRAPH, KERNEL, "24/c245.so", LISTED, "triton/KEY/kernel.cubin")
    assert sorted(map(len, entries_of(files).values())) == [1, 1, 2, 2]
    assert entries_of(GRAPH[:1]).keys() == entries_of(GRAPH[1:]).keys()


def test_a_piece_brings_its_files_to_another_folder(folder: Path, tmp_path: Path) -> None:
    piece, there = tmp_path / "piece", tmp_path / "elsewhere"
    pack(folder, files_of(folder), piece)
    assert unpack(piece, there) == files_of(there) == {*COMPILED}
    assert (there / KERNEL).read_bytes() == (folder / KERNEL).read_bytes()
    assert os.access(there / KERNEL, os.X_OK)
    assert (there / LISTED).read_text() == f'{{"kernel.cubin": "{there}/triton/KEY/kernel.cubin"}}'


def test_a_file_that_is_there_stays(folder: Path, tmp_path: Path) -> None:
    piece = tmp_path / "piece"
    pack(folder, [KERNEL], piece)
    (folder / KERNEL).write_bytes(b"loaded by a rank")
    unpack(piece, folder)
    assert (folder / KERNEL).read_bytes() == b"loaded by a rank"


def test_a_damaged_piece_is_refused(folder: Path, tmp_path: Path) -> None:
    piece = tmp_path / "piece"
    pack(folder, files_of(folder), piece)
    whole = piece.read_bytes()
    for damaged in (b"", b"no archive", whole[: len(whole) // 2]):
        piece.write_bytes(damaged)
        with pytest.raises(PieceDamaged):
            unpack(piece, tmp_path / "elsewhere")


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside"])
def test_no_file_leaves_the_folder(tmp_path: Path, name: str) -> None:
    piece = tmp_path / "piece"
    with tarfile.open(piece, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(PieceDamaged):
        unpack(piece, tmp_path / "elsewhere")
    assert not (tmp_path / "outside").exists()


def test_what_a_killed_compiler_may_have_left_is_deleted(folder: Path) -> None:
    long_ago = time.time() - 60
    os.utime(folder / KERNEL, (long_ago, long_ago))
    drop_unfinished(folder, GRAPH)
    assert files_of(folder) == {*GRAPH, KERNEL}
