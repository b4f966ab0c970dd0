"""From a job's layer to an image for other jobs: over the API, with a real registry."""

import asyncio
import gzip
import hashlib

import pytest

from minicluster.wire import LAYER_FILE, RECIPE_FILE, ImageList, Publication
from minicluster_hub.images.registry import Registries

from ....patience import WITHIN_S
from ...publishing.bases import BASE, push_base, tiny


@pytest.fixture
def start_lab(start_api, offer, registry):
    async def opened(**more):
        client = registry.client()
        digest = await push_base(client)
        own = (f"{registry.name}/{BASE}@{digest}",)
        registries = Registries({registry.name: client}, registry.name)
        return start_api(images=offer(own=own, registries=registries, **more))

    return opened


@pytest.fixture
async def lab(start_lab):
    async with await start_lab() as api:
        yield api


def layer_and_recipe(files=None):
    packed, recipe = tiny(files)
    return {LAYER_FILE: packed, RECIPE_FILE: recipe.model_dump_json().encode()}


async def job_that_left(lab, files, owner="ada"):
    """Run a job that writes these output files; return its id."""
    job, (agent,), (run,) = await lab.running(owner)
    reports = []
    for path, data in files.items():
        sha256 = hashlib.sha256(data).hexdigest()
        answer = await agent.http.put(f"api/tasks/files/{sha256}", content=data)
        assert answer.status_code == 200, answer.text
        blob = {"sha256": sha256, "size_bytes": len(data)}
        reports.append({"attempt": run.attempt, "part": 0, "path": path, "blob": blob})
    await agent.report(attempt=run.attempt, artifacts=reports)
    await agent.finish(run)
    await lab.until(job.id, "succeeded")
    return job.id


async def ask(lab, job_id, name="vision", owner="ada", **more):
    body = {"name": name, "job_id": job_id, **more}
    return await lab.ask("POST", "api/images", f"{owner}-token", json=body)


async def published(lab, job_id, **more):
    """Poll until the push has ended, as a notebook does; return the last answer."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            answer = await ask(lab, job_id, **more)
            assert answer.status_code == 202, answer.text
            reply = Publication.model_validate_json(answer.content)
            if reply.image or reply.problem:
                return reply
            await asyncio.sleep(0.01)


async def offered(lab, token="bob-token"):
    answer = await lab.ask("GET", "api/images", token)
    return {image.name: image for image in ImageList.model_validate_json(answer.content).images}


async def test_a_job_that_left_a_layer_becomes_an_image(lab, registry):
    job_id = await job_that_left(lab, layer_and_recipe())
    answer = await published(lab, job_id, description="colours")
    image = answer.image
    assert (image.name, image.owner, image.state) == ("vision", "ada", "pending")
    assert (image.description, image.device) == ("colours", "cpu")
    assert image.reference == f"{registry.name}/minicluster/published/ada/vision@{image.digest}"
    assert image.base_digest == lab.context.store.job(job_id).spec.image.partition("@")[2]
    assert "vision" not in await offered(lab)
    await lab.ask("POST", f"api/images/{image.digest}/allow", "root-token")
    seen = (await offered(lab))["vision"]
    assert [str(pin) for pin in seen.packages] == ["tiny 1.0"]
    job = await lab.submit("bob", image="vision")
    assert lab.context.store.job(job.id).spec.image == image.reference


async def test_where_nobody_is_asked_it_runs_at_once(start_lab):
    async with await start_lab(publishing="allow") as lab:
        answer = await published(lab, await job_that_left(lab, layer_and_recipe()))
        assert answer.image.state == "allowed"
        assert "vision" in await offered(lab)


async def test_where_publishing_is_off_it_is_refused(start_lab):
    async with await start_lab(publishing="off") as lab:
        answer = await ask(lab, await job_that_left(lab, layer_and_recipe()))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "publishing_off")
        listed = await lab.ask("GET", "api/images")
        assert listed.json()["publishing"] == "off"


async def test_published_twice_it_is_one_image(lab):
    first = await published(lab, await job_that_left(lab, layer_and_recipe()))
    again = await published(lab, await job_that_left(lab, layer_and_recipe()))
    assert first.image.digest == again.image.digest
    assert len(await offered(lab, "ada-token")) == 2


async def test_only_the_owner_publishes_what_a_job_left(lab):
    job_id = await job_that_left(lab, layer_and_recipe())
    for owner in ("bob", "root"):
        answer = await ask(lab, job_id, owner=owner)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_job")


async def test_a_name_of_someone_elses_is_taken(lab):
    await published(lab, await job_that_left(lab, layer_and_recipe()))
    job_id = await job_that_left(lab, layer_and_recipe(), owner="bob")
    answer = await ask(lab, job_id, owner="bob")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "name_taken")
    answer = await ask(lab, job_id, name="notebook", owner="bob")
    assert "one of the cluster itself" in answer.json()["error"]["message"]


async def test_a_job_that_left_nothing_or_is_not_done_is_refused(lab):
    answer = await ask(lab, await job_that_left(lab, {"model.pt": b"x"}))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "no_layer")
    job, _, _ = await lab.running()
    answer = await ask(lab, job.id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "job_not_done")


@pytest.mark.parametrize("name", ["Vision", "a/b", "../up", "-x", "a:b", "", "x" * 64])
async def test_a_name_that_no_registry_takes_is_refused(lab, name):
    assert (await ask(lab, 1, name=name)).status_code == 422


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (layer_and_recipe({"etc/passwd": b"root::0:0"}), "is not below opt/minicluster"),
        ({LAYER_FILE: gzip.compress(b"other")}, "not the one that its recipe describes"),
        ({RECIPE_FILE: b"{}"}, "not one of ours"),
    ],
)
async def test_a_layer_that_is_not_what_it_should_be_never_becomes_an_image(lab, changed, said):
    answer = await published(lab, await job_that_left(lab, {**layer_and_recipe(), **changed}))
    assert said in answer.problem and answer.hint
    assert list(await offered(lab, "root-token")) == ["notebook"]


async def test_a_push_that_failed_is_tried_again_when_it_is_asked_for(lab):
    job_id = await job_that_left(lab, layer_and_recipe())
    own = lab.context.catalogue.registries.own
    url, own.url = own.url, "https://127.0.0.1:9"
    answer = await published(lab, job_id)
    assert "does not answer" in answer.problem and "Try again" in answer.hint
    own.url = url
    assert (await published(lab, job_id)).image.name == "vision"
