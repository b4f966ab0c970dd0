"""A node's cache as an ordinary user: root would not notice wrong file modes."""

import hashlib
import os
import tempfile
import traceback
from pathlib import Path

import pytest
from pydantic import ValidationError

from minicluster.runtime.node.cache import Cache, NoRoom
from minicluster.runtime.node.stream import DataTree
from minicluster.wire import BlobInfo, DataFile, DataManifest, DataOrder

from ... import messages

USER = 1000
DATA = b"one" + b"two and more"
FILES = (DataFile("a/one", 3), DataFile("empty", 0), DataFile("two", 12, True))
MANIFEST = DataManifest(
    files=FILES,
    pieces=(
        BlobInfo(sha256=hashlib.sha256(DATA[:8]).hexdigest(), size_bytes=8),
        BlobInfo(sha256=hashlib.sha256(DATA[8:]).hexdigest(), size_bytes=7),
    ),
)
MANIFEST_DATA = MANIFEST.model_dump_json().encode()


def order(folder="f1", size_bytes=15, files=0):
    sha256 = hashlib.sha256(MANIFEST_DATA).hexdigest()
    named = {"name": folder, "folder": folder, "manifest_sha256": sha256}
    return DataOrder(**named, size_bytes=size_bytes, files=files, attempt=1)


def as_user(work):
    """Call it in a child process as an ordinary user, in that user's folder; pass on its failure."""
    with tempfile.TemporaryDirectory(prefix="minicluster-test-") as name:
        if os.getuid() == 0:
            os.chown(name, USER, USER)
        child = os.fork()
        if child == 0:
            try:
                if os.getuid() == 0:
                    os.setgroups([])
                    os.setgid(USER)
                    os.setuid(USER)
                work(Path(name))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def bring(cache, asked, fresh):
    """Write the data set into its folder, as the data set agent does."""
    root = cache.folder(asked.folder)
    if not root.is_dir():
        root = cache.part(asked.folder)
        root.mkdir(exist_ok=True)
    tree = DataTree(root, MANIFEST, fresh=fresh)
    tree.open()
    for number, (start, end) in enumerate(((0, 8), (8, 15))):
        if not tree.is_sound(number):
            tree.write(number, DATA[start:end])
    tree.seal()
    cache.complete(asked, tree.stats())
    return DataTree(cache.folder(asked.folder), MANIFEST)


def opened(root, limit_bytes=0):
    cache = Cache(root, "a token", limit_bytes)
    cache.open()
    return cache


def test_a_data_set_is_brought_mended_and_removed():
    def work(root):
        cache = opened(root)
        cache.make_room(order(), ())
        assert cache.manifest(order()) is None
        assert cache.keep_manifest(order(), MANIFEST_DATA) == cache.manifest(order()) == MANIFEST
        tree = bring(cache, order(), fresh=True)
        assert cache.touched(order(), tree) == []
        with pytest.raises(PermissionError):
            (tree.root / "mine").write_text("x")
        with pytest.raises(PermissionError):
            (tree.root / "two").write_text("x")
        (tree.root / "two").chmod(0o644)
        (tree.root / "two").write_bytes(b"two and mora")
        assert cache.touched(order(), tree) == [2]
        assert tree.touching([2]) == [0, 1]
        tree = bring(cache, order(), fresh=False)
        assert (tree.root / "two").read_bytes() == b"two and more"
        assert cache.touched(order(), tree) == []
        cache.remove("f1")
        assert (cache.entries(), tree.root.exists()) == ([], False)

    as_user(work)


def test_what_was_cut_is_gone_on_with():
    def work(root):
        cache = opened(root)
        cache.make_room(order(), ())
        part = cache.part("f1")
        part.mkdir()
        tree = DataTree(part, MANIFEST, fresh=True)
        tree.open()
        tree.write(0, b"damaged!")
        tree = bring(opened(root), order(), fresh=False)
        assert (tree.root / "a/one").read_bytes() + (tree.root / "two").read_bytes() == DATA

    as_user(work)


def test_nobody_lists_the_folders():
    def work(root):
        cache = opened(root)
        cache.make_room(order(), ())
        bring(cache, order(), fresh=True)
        with pytest.raises(PermissionError):
            list((root / "sets").iterdir())
        assert {path.name for path in (root / "sets/f1").iterdir()} == {"a", "empty", "two"}

    as_user(work)


def test_the_oldest_makes_room_and_what_is_in_use_stays(tmp_path):
    cache = opened(tmp_path, limit_bytes=40)
    for number, name in enumerate(("f1", "f2")):
        cache.make_room(order(name), ())
        os.utime(next(tmp_path.glob(f"sets/*/{name}.size")), (number, number))
    cache.touch("f1")
    cache.make_room(order("f3"), ("f1",))
    assert {entry.folder for entry in cache.entries()} == {"f1", "f3"}
    with pytest.raises(NoRoom, match=messages.IN_USE_BY_OTHERS) as full:
        cache.make_room(order("f4"), ("f1", "f3"))
    assert full.value.passing
    with pytest.raises(NoRoom, match=r"f5 has 41 bytes.* at most 40 bytes") as full:
        cache.make_room(order("f5", 41), ())
    assert not full.value.passing


def test_empty_files_take_4_kb_each(tmp_path):
    cache = opened(tmp_path, limit_bytes=10 * 4096)
    with pytest.raises(NoRoom, match=rf"f1 has 45,056 bytes in 11 {messages.MANY_FILES}") as full:
        cache.make_room(order(size_bytes=0, files=11), ())
    assert not full.value.passing
    cache.make_room(order(size_bytes=0, files=9), ())
    cache.make_room(order("f2", size_bytes=0, files=2), ())
    (entry,) = cache.entries()
    assert (entry.folder, entry.size_bytes, entry.room_bytes) == ("f2", 0, 2 * 4096)


def test_sizes_that_a_release_before_noted_are_read(tmp_path):
    cache = opened(tmp_path)
    cache.make_room(order(files=3), ())
    next(tmp_path.glob("sets/*/f1.size")).write_text("15")
    (entry,) = cache.entries()
    assert (entry.size_bytes, entry.room_bytes) == (15, 15)


OUTSIDE = ("../.local", "..", ".", "a/b", "/etc", "", "a.part", "a\\b", "a\n", "a\0", "ä", "a" * 65)


@pytest.mark.parametrize("folder", OUTSIDE)
def test_no_order_leads_out_of_the_cache(folder):
    with pytest.raises(ValidationError, match="folder"):
        order(folder)


@pytest.mark.parametrize("index", [name for name in OUTSIDE if name and len(name) < 65])
def test_no_former_index_leads_out_of_the_cache(index, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / ".local").mkdir()
    with pytest.raises(ValueError, match="no name of an index"):
        Cache(tmp_path / "cache", "a token", former_index=index)
    assert {path.name for path in tmp_path.iterdir()} == {"cache", ".local"}


def test_what_a_release_before_kept_is_found_by_its_former_index(tmp_path):
    (tmp_path / "sets/f0").mkdir(parents=True)
    (tmp_path / "sets/f0/f1.size").write_text("15 3")
    cache = Cache(tmp_path, "a token", former_index="f0")
    cache.open()
    assert [entry.folder for entry in cache.entries()] == ["f1"]
