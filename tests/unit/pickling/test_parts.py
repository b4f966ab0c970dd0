"""Large parts of a pickle are stored separately, and restored."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest

from minicluster.capture.payload import CellPayload, PayloadDamaged
from minicluster.client.client import PartHashes
from minicluster.pickling.parts import PART_BYTES, PartsFile, PicklePart, digests, inline_parts
from minicluster.pickling.pickling import dumps, loads, pack_names
from minicluster.pickling.sizes import MOST_PARTS
from minicluster.runtime.rank.parts import PartStore


def test_all_is_there_again_in_its_order():
    small, large = b"a small one", os.urandom(PART_BYTES)
    file = PartsFile()
    for data in (large, small, large[::-1], large, small):
        file.write(data)
    assert [part.at for part in file.parts] == [0, PART_BYTES + len(small), 2 * PART_BYTES + len(small)]
    together = inline_parts(file.small, [(part.at, part.data) for part in file.parts])
    assert together == large + small + large[::-1] + large + small
    assert digests(file.parts)[0] == hashlib.sha256(large).hexdigest()


def test_a_pickle_is_the_same_with_and_without_parts():
    names = {"a": bytearray(os.urandom(PART_BYTES)), "b": [1, 2], "c": os.urandom(PART_BYTES + 1)}
    names["again"] = names["a"]
    packed = pack_names(names, {}, "names")
    assert len(packed.parts) == 2 and len(packed.data) < 1000
    back = loads(dumps(names, {}, "names"), {})
    assert back == names and back["again"] is back["a"]


def test_a_payload_refers_to_its_parts_or_has_them_in_it():
    packed = pack_names({"a": os.urandom(PART_BYTES)}, {}, "names")
    cell = CellPayload(source="a", filename="Cell In[1]", names=packed.data, parts=packed.parts)
    sha256 = digests(packed.parts)
    light = cell.without_parts(sha256)
    assert len(light) < 1000
    read = CellPayload.from_bytes(light)
    parts = {sha256[0]: packed.parts[0].data}
    assert read.with_parts(parts.__getitem__) == CellPayload.from_bytes(cell.to_bytes())
    with pytest.raises(PayloadDamaged, match="1 parts are missing"):
        read.open_names()


def test_there_are_not_more_parts_than_a_job_may_name():
    file, data = PartsFile(), bytes(PART_BYTES)
    for _ in range(MOST_PARTS):
        file.write(data)
    assert file.write(data) == PART_BYTES
    assert len(file.parts) == MOST_PARTS and len(file.small) == PART_BYTES


def test_what_did_not_change_is_not_hashed_again(monkeypatch):
    one, other = bytearray(os.urandom(PART_BYTES)), bytearray(os.urandom(PART_BYTES))
    hashed, hashes = [], PartHashes()

    def counting(parts):
        hashed.append(len(parts))
        return digests(parts)

    def sha256(data):
        return hashlib.sha256(data).hexdigest()

    monkeypatch.setattr("minicluster.client.client.digests", counting)
    parts = [
        PicklePart(0, memoryview(one)),
        PicklePart(PART_BYTES, memoryview(other)),
        PicklePart(9, memoryview(one)),
    ]
    for _ in range(2):
        assert hashes.of(parts) == [sha256(one), sha256(other), sha256(one)]
    other[7] ^= 1
    assert hashes.of(parts) == [sha256(one), sha256(other), sha256(one)]
    assert hashed == [2, 0, 1]
    assert hashes.of([]) == []


class Link:
    """A fake service: returns requested parts, and records requests."""

    def __init__(self):
        self.asked = []

    async def fetch(self, sha256, path):
        self.asked.append(sha256)
        path.write_bytes(sha256.encode() * 10)


async def test_parts_stay_for_the_next_cell_within_a_bound(tmp_path):
    link, store = Link(), PartStore(tmp_path, kept_bytes=50)
    await store.fetch_missing(["a" * 4, "b" * 4], link)
    await store.fetch_missing(["b" * 4, "c" * 4], link)
    assert link.asked == ["a" * 4, "b" * 4, "c" * 4]
    assert store.memory("b" * 4) == b"b" * 40
    await store.fetch_missing(["d" * 4], link)
    await store.fetch_missing(["a" * 4], link)
    assert link.asked[3:] == ["d" * 4, "a" * 4]
    assert store.path("a" * 4).parent.stat().st_mode & 0o777 == 0o700


class Disk(Link):
    """A fake service whose files are written to a disk of limited size."""

    def __init__(self, size_bytes):
        super().__init__()
        self.size_bytes = size_bytes

    async def fetch(self, sha256, path):
        await super().fetch(sha256, path)
        if sum(one.stat().st_size for one in path.parent.iterdir()) > self.size_bytes:
            raise OSError(28, "No space left on device")


async def test_where_the_disk_is_full_parts_of_cells_before_give_way(tmp_path):
    store = PartStore(tmp_path)
    await store.fetch_missing(["a" * 4, "b" * 4], Disk(1000))
    disk = Disk(100)
    await store.fetch_missing(["b" * 4, "c" * 4], disk)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"b" * 4, "c" * 4}
    assert disk.asked == ["c" * 4, "c" * 4]
    with pytest.raises(OSError, match="No space"):
        await store.fetch_missing(["b" * 4, "c" * 4, "d" * 4], disk)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} >= {"b" * 4, "c" * 4}


async def test_when_one_part_fails_none_is_fetched_any_longer(tmp_path):
    class Broken(Link):
        async def fetch(self, sha256, path):
            await super().fetch(sha256, path)
            await asyncio.sleep(0)
            if sha256 == "full":
                raise OSError(28, "No space left on device")
            await asyncio.sleep(0.05)

    store = PartStore(tmp_path)
    with pytest.raises(OSError, match="No space"):
        await store.fetch_missing(["slow", "full"], Broken())
    await asyncio.sleep(0.1)
    assert not store.path("slow").exists()
