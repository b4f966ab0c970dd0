"""Large parts of a pickle are stored separately, and restored."""

from __future__ import annotations

import hashlib
import os

import pytest

from minicluster.capture.payload import CellPayload, PayloadDamaged
from minicluster.client.client import PartHashes
from minicluster.pickling.parts import PART_BYTES, PartsFile, PicklePart, digests, inline_parts
from minicluster.pickling.pickling import dumps, loads, pack_names
from minicluster.pickling.sizes import MOST_PARTS


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
