"""A task's large parts: from the service's disk or from a real server, cut, damaged, or onto a full disk."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import resource
from collections.abc import AsyncIterator

import pytest

from minicluster.runtime.agent import part_downloads
from minicluster.runtime.agent.client import AgentClient, ServiceRefused
from minicluster.runtime.agent.part_downloads import KEPT_BYTES, PartDownloads
from minicluster.runtime.rank.parts import PartStore
from minicluster.runtime.settings import AgentSettings

from ...patience import eventually
from ..client.scripted import Service, answer

PARTS = {hashlib.sha256(data).hexdigest(): data for data in (os.urandom(2_000_000) for _ in range(4))}
A, B, C, D = PARTS


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """A service; at the end, check that no connection is left."""
    made = Service()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def client(service) -> AsyncIterator[AgentClient]:
    made = AgentClient([service.url], "secret")
    yield made
    await made.close()


@pytest.fixture
def downloads(tmp_path, client):
    def make(kept_bytes: int = KEPT_BYTES, service_blobs: str = "") -> PartDownloads:
        settings = AgentSettings((), "secret", tmp_path / "task", "node-1", "127.0.0.1", service_blobs)
        return PartDownloads(settings, client, kept_bytes)

    return make


@pytest.fixture
def store(tmp_path):
    """The task's store; at the end, check that each part is what its name says."""
    made = PartStore(tmp_path / "task")
    made.folder.mkdir(parents=True)
    yield made
    for path in made.folder.iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def asked(service: Service) -> list[str]:
    return [request.split()[1].rpartition("/")[2] for request in service.requests]


class Sound:
    """Answers each request with the part that it names."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __getitem__(self, number: int) -> bytes:
        return answer(PARTS[asked(self._service)[number]])


async def test_parts_stay_for_the_next_cell_within_a_bound(service, store, downloads):
    service.answers, bounded = Sound(service), downloads(kept_bytes=2_500_000)
    await bounded.fetch_missing([A, B])
    await bounded.fetch_missing([B, C])
    assert sorted(asked(service)) == sorted([A, B, C])
    assert store.memory(B) == PARTS[B]
    await bounded.fetch_missing([D])
    await bounded.fetch_missing([A])
    assert asked(service)[3:] == [D, A]


async def test_a_folder_of_parts_is_for_its_user_only(tmp_path, service, downloads):
    service.answers = [answer(PARTS[A])]
    await downloads().fetch_missing([A])
    assert (tmp_path / "task" / "parts").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("bad", [PARTS[B], PARTS[A][:-1] + b"x", PARTS[A] + b"more"])
async def test_a_damaged_part_is_fetched_again(service, store, downloads, bad):
    service.answers = [answer(bad), answer(PARTS[A])]
    await downloads().fetch_missing([A])
    assert (asked(service), store.memory(A)) == ([A, A], PARTS[A])


async def test_a_cut_part_is_fetched_again(service, store, downloads):
    service.answers = [answer(PARTS[A][:1_000_000], length=len(PARTS[A])), answer(PARTS[A])]
    service.closes = {0}
    await downloads().fetch_missing([A])
    assert (asked(service), store.memory(A)) == ([A, A], PARTS[A])


async def test_a_refused_part_is_told(service, store, downloads):
    body = b'{"error": {"code": "unknown_blob", "message": "there is no such part", "hint": ""}}'
    service.answers = [answer(body, status="404 No")]
    with pytest.raises(ServiceRefused, match="no such part"):
        await downloads().fetch_missing([A])


async def test_where_the_disk_is_full_parts_of_earlier_cells_give_way(service, store, downloads, monkeypatch):
    """A function that refuses to write stands for the full disk, which no test can have of its own."""
    write = part_downloads._write

    def on_small_disk(descriptor, data):
        if sum(path.stat().st_size for path in store.folder.iterdir()) + len(data) > 4_500_000:
            raise part_downloads._NotWritten(OSError(errno.ENOSPC, "No space left on device"))
        write(descriptor, data)

    service.answers = Sound(service)
    await downloads().fetch_missing([A, B])
    monkeypatch.setattr(part_downloads, "_write", on_small_disk)
    await downloads().fetch_missing([B, C])
    assert {path.name for path in store.folder.iterdir()} == {B, C}
    with pytest.raises(OSError, match="No space"):
        await downloads().fetch_missing([B, C, D])
    await eventually(lambda: {path.name for path in store.folder.iterdir()} == {B, C})


async def test_a_part_that_the_disk_refuses_is_told_and_leaves_nothing(service, store, downloads):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    service.answers = [answer(PARTS[A])]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            await downloads().fetch_missing([A])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(store.folder.iterdir()) == []
    await eventually(lambda: service.ended == service.opened)


async def test_on_the_services_machine_parts_are_linked(tmp_path, service, store, downloads):
    blobs = tmp_path / "blobs"
    for one in (A, B):
        (blobs / one[:2]).mkdir(parents=True, exist_ok=True)
        (blobs / one[:2] / one).write_bytes(PARTS[one])
    service.answers = [answer(PARTS[C])]
    for _ in range(2):
        await downloads(service_blobs=str(blobs)).fetch_missing([A, C, B])
    assert store.path(A).samefile(blobs / A[:2] / A)
    # What the service lacks comes over the network, and what it removes stays.
    assert asked(service)[0] == C
    (blobs / A[:2] / A).unlink()
    assert store.memory(A) == PARTS[A]


async def test_a_write_to_a_linked_part_stays_in_its_process(tmp_path, store, downloads):
    blob = tmp_path / "blobs" / A[:2] / A
    blob.parent.mkdir(parents=True)
    blob.write_bytes(PARTS[A])
    await downloads(service_blobs=str(tmp_path / "blobs")).fetch_missing([A])
    memory = store.memory(A)
    memory[:4] = b"mine"
    assert blob.read_bytes() == PARTS[A]


async def test_a_part_that_is_on_its_way_is_not_fetched_again(service, store, downloads):
    service.answers, shared = Sound(service), downloads()
    shared.prefetch([A])
    shared.prefetch([A, B])
    await asyncio.gather(shared.fetch_missing([A, B, C]), shared.fetch_missing([C, B]))
    assert sorted(asked(service)) == sorted([A, B, C])
    assert {path.name for path in store.folder.iterdir()} == {A, B, C}


async def test_what_is_refused_before_its_cell_comes_is_fetched_with_it(service, store, downloads):
    body = b'{"error": {"code": "no_attempt", "message": "there is no attempt", "hint": ""}}'
    service.answers = [answer(body, status="409 No"), answer(PARTS[B]), answer(PARTS[A])]
    shared = downloads()
    shared.prefetch([A])
    await eventually(lambda: asked(service) == [A])
    shared.prefetch([A, B])
    await eventually(lambda: store.path(B).exists())
    await shared.fetch_missing([A, B])
    assert asked(service) == [A, B, A]


async def test_an_end_cancels_what_is_on_its_way(service, store, downloads):
    service.answers, service.hangs = [answer(PARTS[A][:1_000_000], length=len(PARTS[A]))], {0}
    shared = downloads()
    shared.prefetch([A])
    await eventually(lambda: asked(service) == [A])
    shared.close()
    await eventually(lambda: service.ended == service.opened)
    await eventually(lambda: list(store.folder.iterdir()) == [])
