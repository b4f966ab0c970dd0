"""A folder as a data set: how it is divided, and where its pieces are on a node's disk."""

import hashlib
import os
import random
import tracemalloc

import pytest
from pydantic import ValidationError

from minicluster.datasets import folder as folders
from minicluster.datasets.folder import FolderUnusable, cut, scan
from minicluster.runtime.node.stream import DataTree
from minicluster.wire import PIECE_BYTES, BlobInfo, DataFile, DataManifest

SIZES = {"a/empty": 0, "a/one": 1, "b": PIECE_BYTES, "c/large": 2 * PIECE_BYTES + 7, "c/z": 100, "d": 0}


@pytest.fixture
def folder(tmp_path):
    for path, size in SIZES.items():
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_bytes(random.Random(path).randbytes(size))
    (tmp_path / "source/c/z").chmod(0o755)
    return scan(tmp_path / "source")


def manifest_of(folder):
    pieces = [folder.read(piece) for piece in cut(folder.files)]
    infos = (BlobInfo(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data)) for data in pieces)
    return DataManifest(files=folder.files, pieces=tuple(infos)), pieces


def test_pieces_are_the_files_in_order(folder):
    _, pieces = manifest_of(folder)
    assert [file.path for file in folder.files] == sorted(SIZES)
    assert b"".join(pieces) == b"".join((folder.root / path).read_bytes() for path in sorted(SIZES))
    assert [len(piece) for piece in pieces] == [1, PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 7, 100]


@pytest.mark.parametrize("fresh", [True, False])
def test_a_tree_is_written_and_checked_piece_by_piece(folder, tmp_path, fresh):
    manifest, pieces = manifest_of(folder)
    (tmp_path / "node").mkdir()
    tree = DataTree(tmp_path / "node", manifest, fresh=fresh)
    tree.open()
    assert not any(tree.is_sound(number) for number in range(len(pieces)))
    for number in reversed(range(len(pieces))):
        tree.write(number, pieces[number])
    tree.seal()
    assert all(tree.is_sound(number) for number in range(len(pieces)))
    for path in SIZES:
        assert (tmp_path / "node" / path).read_bytes() == (folder.root / path).read_bytes()
    assert os.access(tmp_path / "node/c/z", os.X_OK)
    before = tree.stats()
    assert None not in before
    tree.open()
    tree.write(3, pieces[3])
    tree.seal()
    changed = [
        number for number, (one, other) in enumerate(zip(before, tree.stats(), strict=True)) if one != other
    ]
    assert [folder.files[number].path for number in changed] in (["c/large"], ["a/empty", "c/large", "d"])
    assert tree.touching(changed) == [2, 3, 4]


def test_where_packs_end_depends_on_the_names_near_it():
    files = [DataFile(f"{number:05}.png", 50_000) for number in range(2_000)]

    def packs(files):
        return {tuple(part.file.path for part in piece) for piece in cut(tuple(files))}

    before = packs(files)
    after = packs([*files[:700], DataFile("00699a.png", 70_000), *files[700:]])
    assert len(before) > 8
    assert len(before - after) <= 3


def test_a_file_that_changes_while_it_is_read_is_told(folder):
    pieces = list(cut(folder.files))
    (folder.root / "c/z").write_bytes(b"shorter")
    with pytest.raises(FolderUnusable, match="changed while it was read"):
        folder.read(pieces[-1])
    (folder.root / "c/z").unlink()
    with pytest.raises(FolderUnusable, match="cannot be read"):
        folder.read(pieces[-1])


def test_links_to_files_are_files_and_those_to_folders_are_left_out(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a").write_bytes(b"abc")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/file").symlink_to(tmp_path / "real/a")
    (tmp_path / "set/folder").symlink_to(tmp_path / "real")
    (tmp_path / "set/gone").symlink_to(tmp_path / "nowhere")
    folder = scan(tmp_path / "set")
    assert folder.files == (DataFile("file", 3, False),)
    assert sorted(folder.left_out) == ["folder", "gone"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([("a", 1), ("a", 1)], "twice"),
        ([("a", 1), ("a/b", 1)], "a file and a folder"),
        ([("a", 1)], "differ in size"),
        ([("../a", 2)], "no path of a file"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(files, words):
    with pytest.raises(ValueError, match=words):
        DataManifest(files=files, pieces=(BlobInfo(sha256="a" * 64, size_bytes=2),))


DEEP = "/".join("a" * 500)


def paths_only(*paths):
    return DataManifest(files=[(path, 0) for path in paths], pieces=())


@pytest.mark.parametrize("path", ["/".join("a" * 600), "é" * 600])
def test_a_path_that_is_too_long_is_told_by_name(path):
    with pytest.raises(ValueError, match="more than 1024 bytes") as refused:
        paths_only(path)
    assert repr(path[:80]) in refused.value.errors()[0]["msg"]


def test_folders_of_folders_take_no_more_memory_than_their_paths():
    files = [(f"{number}/{DEEP}", 0) for number in range(200)]
    tracemalloc.start()
    DataManifest(files=files, pieces=())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20


@pytest.mark.parametrize("between", ["a-b", "a.txt", "a b", "a!"])
def test_a_file_that_is_a_folder_is_seen_whatever_sorts_between(between):
    paths_only("a/b", between)
    with pytest.raises(ValueError, match="'a' is a file and a folder"):
        paths_only("a/b/c", between, "a")


def test_a_manifest_of_anything_else_is_read_to_its_first_mistake():
    with pytest.raises(ValidationError) as refused:
        DataManifest.model_validate_json(b'{"files":[' + b"[]," * 10_000 + b'[]],"pieces":[]}')
    assert refused.value.error_count() < 10


def test_a_path_that_is_too_long_is_told_before_anything_is_read(tmp_path):
    path = tmp_path
    for _ in range(6):
        path /= "a" * 200
    path.mkdir(parents=True)
    (path / "b").touch()
    with pytest.raises(FolderUnusable, match="more than 1024 bytes"):
        scan(tmp_path)


@pytest.mark.parametrize(("limit", "value"), [("FILES_MOST", 2), ("MANIFEST_BYTES", 70)])
def test_files_that_are_too_many_are_told_before_they_are_read(tmp_path, monkeypatch, limit, value):
    for name in "abc":
        (tmp_path / name).touch()
    scan(tmp_path)
    monkeypatch.setattr(folders, limit, value)
    with pytest.raises(FolderUnusable, match="holds 3 files"):
        scan(tmp_path)
