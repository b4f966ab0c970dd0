"""Hanging publications and long recipes delay only their owner."""

import asyncio
import hashlib
import os
from dataclasses import replace

import pytest
from sqlalchemy import event

from minicluster.wire import LAYER_FILE, RECIPE_FILE, ImageState, Pin, PublishImage
from minicluster.wire.limits import LISTED_PACKAGES, RECIPE_BYTES
from minicluster_hub.images.publishing import PublishingBusy, PublishingFiles
from minicluster_hub.images.registry import Registries, Registry
from minicluster_hub.jobs.records import ImageRecord
from minicluster_hub.store.storage import images as store_images

from ...patience import WITHIN_S, eventually
from ...service.api.storage.test_publishing import ask, job_that_left, layer_and_recipe, published
from ...service.publishing.bases import tiny


def code(answer):
    return answer.status_code, answer.json()["error"]["code"]


class SlowRegistry:
    """Accepts each connection and never answers. `waiting`: owners of the requested repositories."""

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
        await eventually(lambda: slow.waiting)  # The service itself requests its own image.
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
    """Create jobs with endless layers: pipes that never end for a reader."""
    api, _ = lab
    job = api.context.store.job(await job_that_left(api, layer_and_recipe(), "bob"))
    recipe, pipes = tmp_path / "recipe", []
    recipe.write_text(tiny()[1].model_dump_json())

    def publish(number):
        pipes.append(tmp_path / f"pipe-{number}")
        os.mkfifo(pipes[-1])
        theirs = replace(job, owner=f"user-{number}", id=10_000 + number)
        request = PublishImage(name="x", job_id=theirs.id)
        return api.context.publications.start(theirs, request, PublishingFiles(pipes[-1], recipe))

    yield publish
    await api.context.publications.close()
    for pipe in pipes:
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


async def test_layers_without_end_use_up_no_threads_of_others(lab, bobs):
    api, _ = lab
    for number in range(40):
        bobs(number)
    await eventually(lambda: "checking the layer" in str(api.context.publications._progress))
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


def invented(count, source=""):
    """Return a recipe with so many invented packages."""
    pins = (
        Pin(name=f"invented-{number}", version="1.0", source=source, sha256="a" * 64)
        for number in range(count)
    )
    return tiny()[1].model_copy(update={"packages": tuple(pins)})


def enter(api, count, recipe):
    """Add images of Ada's that wait for approval, as an earlier release stored them; return one's digest."""
    for number in range(count):
        digest = f"sha256:{number:064x}"
        where = f"127.0.0.1:5100/published/ada/{number}@{digest}"
        record = (digest, f"image-{number}", where, "ada", "", "cpu", 1, digest, recipe, ImageState.PENDING)
        api.context.store.images.publish(ImageRecord(*record, created_at=1.0, changed_at=1.0))
    return f"sha256:{0:064x}"


@pytest.fixture
def read_recipes(lab):
    """Record database queries whose answers contain a recipe."""
    api, _ = lab
    engine, asked = api.context.store.images._database._engine, []

    def note(_connection, _cursor, statement, *_):
        if statement.startswith("SELECT") and "images.recipe" in statement.replace("(images.recipe", ""):
            asked.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield asked
    event.remove(engine, "before_cursor_execute", note)


@pytest.mark.full("a minute of lists; it measures")
async def test_jobs_and_lists_read_no_recipes(lab, read_recipes, monkeypatch):
    api, _ = lab
    long = invented(10_000, "https://" + "x" * 220)
    assert len(long.model_dump_json()) > 3_000_000
    digest = enter(api, 10, long)
    parsed = []
    parse = store_images.Recipe.model_validate_json
    monkeypatch.setattr(
        store_images.Recipe, "model_validate_json", lambda text: [parsed.append(1), parse(text)][1]
    )
    read_recipes.clear()
    await api.submit("bob")
    assert (await api.ask("GET", "api/about", "bob-token")).status_code == 200
    await api.context.catalogue._enter_own()
    await api.context.catalogue._describe()
    assert (await api.ask("GET", "api/servers/images", "spawner-token")).status_code == 200
    answer = await api.ask("GET", "api/images")
    first = next(one for one in answer.json()["images"] if one["digest"] == digest)
    assert [one["name"] for one in first["packages"]][:2] == ["invented-0", "invented-1"]
    assert len(first["packages"]) + first["more_packages"] == 10_000
    assert len(first["packages"]) <= LISTED_PACKAGES
    assert len(answer.content) < 10 * 12_000
    allowed = await api.ask("POST", f"api/images/{digest}/allow", "root-token")
    assert len(allowed.content) < 12_000
    assert not parsed and not read_recipes
    whole = (await api.ask("GET", f"api/images/{digest}")).json()
    assert len(whole["packages"]) == 10_000, "those of an earlier release can be read"
    assert parsed and read_recipes, "what the test looks for is seen"


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (invented(2_001), "2,001 packages; the limit is 2,000"),
        (invented(1_000, "https://" + "x" * 600), f"bytes; the limit is {RECIPE_BYTES:,}"),
    ],
)
async def test_a_recipe_that_is_too_long_is_refused(lab, recipe, said):
    api, _ = lab
    files = {LAYER_FILE: tiny()[0], RECIPE_FILE: recipe.model_dump_json().encode()}
    answer = await published(api, await job_that_left(api, files))
    assert said in answer.problem and "%pip uninstall" in answer.hint


async def test_recipes_count_to_their_owners_quota(lab):
    api, _ = lab
    storage, recipe = api.context.store.storage, invented(1_900, "https://" + "x" * 60)
    text = recipe.model_dump_json()
    assert len(text) > 300_000
    job = await job_that_left(api, {LAYER_FILE: tiny()[0], RECIPE_FILE: text.encode()})
    used = sum(use.size_bytes for use in storage.used("ada").values())
    api.context.storage.limit_of = {"ada": used + 200_000}.get
    assert code(await ask(api, job)) == (413, "storage_quota")
    enter(api, 3, recipe)
    more = sum(use.size_bytes for use in storage.used("ada").values()) - used
    assert more == 3 * (len(text) + recipe.layer_bytes)
    assert storage.largest("ada", 1)[0].size_bytes >= len(text)


async def test_all_recipes_of_an_owner_have_an_end(lab):
    """SQLite reads through a row's recipe to get later columns, at every tick and for every list."""
    api, _ = lab
    recipe = invented(1_900, "https://" + "x" * 60)
    enough = (8 << 20) // len(recipe.model_dump_json())
    assert enough < 40
    enter(api, enough, recipe)
    files = {LAYER_FILE: tiny()[0], RECIPE_FILE: recipe.model_dump_json().encode()}
    refused = await ask(api, await job_that_left(api, files))
    assert code(refused) == (409, "too_many_images")
    assert "together would exceed 8 MB" in refused.json()["error"]["message"]
    assert (await ask(api, await job_that_left(api, layer_and_recipe()))).status_code == 202
    bobs = await job_that_left(api, files, "bob")
    assert (await ask(api, bobs, owner="bob")).status_code == 202


async def test_a_job_looks_at_no_images_but_those_that_it_may_mean(lab, monkeypatch):
    api, _ = lab
    enter(api, 100, invented(1))
    seen = []
    record = store_images._record
    monkeypatch.setattr(store_images, "_record", lambda row: seen.append(row.name) or record(row))
    await api.submit("bob")
    for image in ("", "?image=elsewhere/x:1", "?image=image-7"):
        await api.ask("GET", f"api/about{image}", "bob-token")
    assert set(seen) == {"base", "image-7"}
