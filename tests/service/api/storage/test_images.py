"""The catalogue over the API: the images that jobs may run, as users and administrators see them."""

import asyncio
from dataclasses import replace

import pytest

from minicluster.wire import Image, ImageList, ImageState, Pin, Recipe
from minicluster.wire.limits import LISTED_PACKAGES
from minicluster_hub.jobs.records import ImageRecord

from .... import messages
from ....patience import WITHIN_S, eventually

FIRST, SECOND, THIRD = (f"sha256:{letter * 64}" for letter in "abc")
OWN = f"127.0.0.1:5100/minicluster/notebook@{FIRST}"
TAGGED = "lab/torch:2"
RECIPE = Recipe(
    packages=(Pin(name="pandas", version="2.2.3"),),
    python="3.12",
    machine="x86_64",
    layer_sha256="1" * 64,
    layer_bytes=10,
    diff_sha256="2" * 64,
)


def published(owner="ada", name="vision", digest=THIRD, state=ImageState.PENDING, at=5.0):
    reference = f"127.0.0.1:5100/minicluster/published/{owner}/{name}@{digest}"
    return ImageRecord(digest, name, reference, owner, "", "cpu", 10, FIRST, RECIPE, state, at, at)


@pytest.fixture
async def lab(start_api, offer):
    async with start_api(images=offer(own=(OWN, TAGGED), tags={TAGGED: SECOND})) as api:
        await eventually(lambda: len(api.context.store.images.all()) >= 2)
        yield api


async def listed(lab, token="ada-token"):
    answer = await lab.ask("GET", "api/images", token)
    assert answer.status_code == 200, answer.text
    return {image.name: image for image in ImageList.model_validate_json(answer.content).images}


async def refusal(lab, image):
    """Submit a job with an image that is refused; return the error."""
    body = {"idempotency_key": f"key-{image[-40:]}", "spec": {"payload_sha256": "0" * 64, "image": image}}
    answer = await lab.ask("POST", "api/jobs", json=body)
    assert answer.status_code == 422, answer.text
    return answer.json()["error"]


async def image_of(lab, **spec):
    job = await lab.submit(**spec)
    return lab.context.store.job(job.id).spec.image


async def test_the_settings_images_are_offered_by_digest(lab):
    images = await listed(lab)
    assert {name: image.digest for name, image in images.items()} == {"notebook": FIRST, "torch:2": SECOND}
    assert {image.state for image in images.values()} == {"allowed"}
    assert images["torch:2"].reference == f"lab/torch@{SECOND}"


@pytest.mark.parametrize(
    ("told", "runs"),
    [
        (None, OWN),
        ("notebook", OWN),
        (OWN, OWN),
        (FIRST, OWN),
        (TAGGED, f"lab/torch@{SECOND}"),
        ("torch:2", f"lab/torch@{SECOND}"),
    ],
)
async def test_a_name_becomes_a_digest_when_the_job_is_taken(lab, told, runs):
    assert await image_of(lab, **({"image": told} if told else {})) == runs


@pytest.mark.parametrize("told", ["evil/miner:1", f"lab/torch@{THIRD}", "torch", "lab/torch:3", THIRD])
async def test_any_other_name_is_refused_with_what_is_offered(lab, told):
    error = await refusal(lab, told)
    assert error["code"] == "image_not_allowed"
    assert told in error["message"]
    assert "notebook, torch:2" in error["hint"]


async def test_a_tag_that_moves_stays_what_it_was(lab):
    lab.engine.tags[TAGGED] = THIRD
    await asyncio.wait_for(lab.context.catalogue._enter_own(), WITHIN_S)
    assert await image_of(lab, image=TAGGED) == f"lab/torch@{SECOND}"
    assert "torch:2" in (await listed(lab)) and THIRD not in str(await listed(lab))


async def test_an_image_that_left_the_settings_runs_no_more(lab):
    lab.engine.images = (OWN,)
    await lab.context.catalogue._enter_own()
    assert list(await listed(lab)) == ["notebook"]
    assert (await refusal(lab, SECOND))["message"].endswith(messages.IMAGE_WAS_RETIRED)
    lab.engine.images = (OWN, TAGGED)
    await lab.context.catalogue._enter_own()
    assert await image_of(lab, image="torch:2") == f"lab/torch@{SECOND}"


async def test_an_engine_without_images_names_none(api):
    error = await refusal(api, "notebook")
    assert error["code"] == "image_not_allowed" and "own environment" in error["message"]
    assert "Leave --image out" in error["hint"]
    assert await image_of(api) is None
    assert await listed(api) == {}


async def test_a_published_image_waits_for_an_admin(lab):
    image = lab.context.store.images.publish(published())
    assert (await refusal(lab, "vision"))["message"].endswith(messages.IMAGE_WAITS)
    assert "vision" in await listed(lab) and "vision" in await listed(lab, "root-token")
    assert "vision" not in await listed(lab, "bob-token")
    for token in ("ada-token", "bob-token"):
        answer = await lab.ask("POST", f"api/images/{THIRD}/allow", token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "scope_missing")
    answer = await lab.ask("POST", f"api/images/{THIRD}/allow", "root-token")
    assert (answer.status_code, answer.json()["state"]) == (200, "allowed")
    seen = (await listed(lab, "bob-token"))["vision"]
    assert [str(pin) for pin in seen.packages] == ["pandas 2.2.3"]
    assert await image_of(lab, owner="bob", image="vision") == image.reference


async def test_an_image_comes_with_all_of_its_packages_to_those_who_see_it(lab):
    pins = tuple(Pin(name=f"package-{number:03}", version=f"1.{number}") for number in range(100))
    image = replace(published(), recipe=RECIPE.model_copy(update={"packages": pins}))
    lab.context.store.images.publish(image)
    short = (await listed(lab))["vision"]
    assert short.packages == pins[: len(short.packages)] and len(short.packages) == LISTED_PACKAGES
    assert short.more_packages == 100 - LISTED_PACKAGES
    for token in ("ada-token", "root-token"):
        whole = Image.model_validate_json((await lab.ask("GET", f"api/images/{THIRD}", token)).content)
        assert whole == short.model_copy(update={"packages": pins, "more_packages": 0})
    for digest, token in ((THIRD, "bob-token"), (f"sha256:{'e' * 64}", "ada-token")):
        answer = await lab.ask("GET", f"api/images/{digest}", token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_image")
    allowed = await lab.ask("POST", f"api/images/{THIRD}/allow", "root-token")
    assert allowed.json()["more_packages"] == short.more_packages
    assert len((await lab.ask("GET", f"api/images/{THIRD}", "bob-token")).json()["packages"]) == 100
    own = (await lab.ask("GET", f"api/images/{FIRST}", "bob-token")).json()
    assert (own["packages"], own["more_packages"]) == ([], 0)


async def test_a_job_whose_image_is_retired_while_it_waits_says_so(lab):
    lab.context.store.images.publish(published(state=ImageState.ALLOWED))
    job = await lab.submit(nodes=5, image="vision")  # two of the five are down
    await lab.until(job.id, "queued")
    other = await lab.submit(nodes=5)
    assert (await lab.ask("POST", f"api/images/{THIRD}/retire", "root-token")).status_code == 200
    await lab.until(job.id, "failed")
    error = lab.context.store.job(job.id).error
    assert "published/ada/vision" in error.message and messages.RETIRED_MEANWHILE in error.message
    assert "%distribute images" in error.hint
    assert lab.context.store.job(other.id).state == "queued"
    assert (await refusal(lab, "vision"))["message"].endswith(messages.IMAGE_WAS_RETIRED)
    assert "vision" not in await listed(lab, "bob-token")


async def test_the_clusters_own_follow_its_settings_alone(lab):
    answer = await lab.ask("POST", f"api/images/{FIRST}/retire", "root-token")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "image_own")
    answer = await lab.ask("POST", f"api/images/{THIRD}/retire", "root-token")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_image")


async def test_the_newest_of_a_name_is_meant_by_it(lab):
    images = lab.context.store.images
    older = images.publish(published(digest=THIRD, state=ImageState.ALLOWED, at=5.0))
    newer = images.publish(published(digest=f"sha256:{'d' * 64}", at=6.0))
    assert await image_of(lab, image="vision") == older.reference
    await lab.ask("POST", f"api/images/{newer.digest}/allow", "root-token")
    assert await image_of(lab, image="vision") == newer.reference
    assert await image_of(lab, image=f"vision-{'c' * 8}") == older.reference
    assert await image_of(lab, image=older.reference) == older.reference


async def test_an_image_that_is_allowed_again_takes_nobodys_name(lab):
    images = lab.context.store.images
    first = images.publish(published("ada", digest=THIRD, state=ImageState.ALLOWED))
    await lab.ask("POST", f"api/images/{first.digest}/retire", "root-token")
    second = images.publish(published("bob", digest=f"sha256:{'d' * 64}", state=ImageState.ALLOWED))
    await lab.ask("POST", f"api/images/{first.digest}/allow", "root-token")
    assert await image_of(lab, image="vision") == second.reference
    assert await image_of(lab, image=f"vision-{'c' * 8}") == first.reference


async def test_after_an_upgrade_the_name_is_the_new_images(lab):
    newer = f"127.0.0.1:5100/minicluster/notebook@{THIRD}"
    lab.engine.images = (newer, OWN)
    await lab.context.catalogue._enter_own()
    assert await image_of(lab) == await image_of(lab, image="notebook") == newer
    assert await image_of(lab, image=f"notebook-{'a' * 8}") == await image_of(lab, image=OWN) == OWN


async def test_a_node_that_ran_an_image_has_it(lab):
    _, agents, _ = await lab.running(nodes=2, image="notebook")
    assert len(agents) == 2
    assert (await listed(lab))["notebook"].nodes == ("node-1", "node-2")
    assert (await listed(lab))["torch:2"].nodes == ()
    # The engine has also seen images that no job ran: a notebook server's, the platform's.
    lab.engine.there = {f"elsewhere/torch@{SECOND}": {"node-3", "node-1"}, "untold/hub:1": {"node-2"}}
    assert (await listed(lab))["torch:2"].nodes == ("node-1", "node-3")


async def test_the_spawner_sees_what_servers_may_run(lab):
    lab.context.store.images.publish(published())
    answer = await lab.ask("GET", "api/servers/images", "spawner-token")
    assert {image.name for image in ImageList.model_validate_json(answer.content).images} == {
        "notebook",
        "torch:2",
    }
    assert (await lab.ask("GET", "api/servers/images", "ada-token")).status_code == 403
