"""Publications that hang, on a registry or on a layer, hold up their owner and nobody else."""

import asyncio
import hashlib
import os
from dataclasses import replace

import pytest

from minicluster.wire import PublishImage
from minicluster_hub.catalogue.publishing import Left, PublishingBusy
from minicluster_hub.catalogue.registry import Registries, Registry

from ..patience import WITHIN_S, eventually
from ..service.api.test_publishing import ask, job_that_left, layer_and_recipe
from ..service.publishing.bases import tiny


def code(answer):
    return answer.status_code, answer.json()["error"]["code"]


class SlowRegistry:
    """Takes each connection and never answers. `waiting`: whose repositories were asked for."""

    def __init__(self):
        self.waiting = []

    async def start(self):
        self.server = await asyncio.start_server(self.hang, "127.0.0.1", 0)
        self.name = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def hang(self, reader, writer):
        self.waiting.append((await reader.readline()).decode().split()[1])
        await reader.read()
        writer.close()


@pytest.fixture
async def lab(start_api, offer):
    slow = await SlowRegistry().start()
    own = (f"{slow.name}/base@sha256:{'a' * 64}",)
    registries = Registries({slow.name: Registry(f"http://{slow.name}")}, slow.name)
    async with start_api(images=offer(own=own, registries=registries)) as api:
        await eventually(lambda: slow.waiting)  # The service itself asks what its own image is.
        slow.waiting.clear()
        yield api, slow
    slow.server.close()


async def test_an_owner_publishes_one_image_at_a_time(lab):
    api, slow = lab
    bobs = await job_that_left(api, layer_and_recipe(), "bob")
    adas = await job_that_left(api, layer_and_recipe({"opt/minicluster/x": b"ada's"}))
    for number in range(5):
        assert (await ask(api, bobs, name=f"image-{number}", owner="bob")).status_code == 202
    assert code(await ask(api, bobs, name="one-more", owner="bob")) == (429, "publishing_busy")
    assert (await ask(api, bobs, name="image-4", owner="bob")).json()["doing"] == "waiting for its turn"
    await eventually(lambda: slow.waiting)
    assert (await ask(api, adas)).status_code == 202
    await eventually(lambda: len(slow.waiting) == 2)
    for _ in range(20):
        assert (await ask(api, adas)).json()["doing"] != "waiting for its turn"
    assert len(slow.waiting) == 2, "the others of Bob's wait for his first one"


async def test_images_count_to_their_owners_quota(lab):
    api, _ = lab
    job = await job_that_left(api, layer_and_recipe())
    bobs = await job_that_left(api, layer_and_recipe({"opt/minicluster/x": b"bob's"}), "bob")
    used = sum(use.size_bytes for use in api.context.store.storage.used("ada").values())
    api.context.storage.limit_of = {"ada": used, "bob": used + 1_000_000}.get
    refused = await ask(api, job)
    assert code(refused) == (413, "storage_quota")
    assert "more of published images would be over your storage quota" in refused.json()["error"]["message"]
    assert (await ask(api, bobs, owner="bob")).status_code == 202


@pytest.fixture
async def bobs(lab, tmp_path):
    """Have what asks to publish layers without end: pipes, of which a reader never sees the end."""
    api, _ = lab
    job = api.context.store.job(await job_that_left(api, layer_and_recipe(), "bob"))
    recipe, pipes = tmp_path / "recipe", []
    recipe.write_text(tiny()[1].model_dump_json())

    def publish(number):
        pipes.append(tmp_path / f"pipe-{number}")
        os.mkfifo(pipes[-1])
        theirs = replace(job, owner=f"user-{number}", id=10_000 + number)
        wish = PublishImage(name="x", job_id=theirs.id)
        return api.context.publications.ask(theirs, wish, Left(pipes[-1], recipe))

    yield publish
    await api.context.publications.close()
    for pipe in pipes:
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


async def test_layers_without_end_use_up_no_threads_of_others(lab, bobs):
    api, _ = lab
    for number in range(40):
        bobs(number)
    await eventually(lambda: "checking the layer" in str(api.context.publications._shown))
    for data in (b"ada's cell", b"another"):
        sha256 = hashlib.sha256(data).hexdigest()
        put = await asyncio.wait_for(api.ask("PUT", f"api/blobs/{sha256}", content=data), WITHIN_S / 3)
        assert put.status_code == 200


async def test_publications_under_way_are_bounded(lab, bobs):
    api, _ = lab
    with pytest.raises(PublishingBusy):
        for number in range(1000):
            bobs(number)
    assert len(api.context.publications._work) <= 100
