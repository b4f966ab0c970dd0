"""Jobs run only the cluster's images, each by the digest that it had when it was offered."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.errors import VisitFailed

from ... import messages
from ..cluster import LabCluster, Person
from ..faults.inject import kill_and_wait
from ..jobs import administrator
from ..machines import Lab
from ..people import People, error
from ..remains import check_nothing_left
from .catalogue import MOVING, listed, move

NODES = ["node1", "node2", "node3"]
_ALERT = re.compile(rf"{messages.NO_SUCH_IMAGE} [^<]*")
_LOOK = "print(open('/mark').read(), end='', flush=True)\n"


async def until_on_all_nodes(admin: Person, name: str, within_s: float = 60) -> dict[str, object]:
    """Return an image once all nodes have it."""
    until = time.monotonic() + within_s
    while (image := (await listed(admin))[name])["nodes"] != NODES:
        assert time.monotonic() < until, image
        await asyncio.sleep(0.5)
    return image


async def test_a_cluster_offers_its_own_image_and_says_what_it_is(offering: LabCluster) -> None:
    async with offering.person() as admin:
        await admin.visitor.http.get(SERVICE_PATH)
        image = await until_on_all_nodes(admin, "notebook")
    assert (image["state"], image["device"], image["owner"]) == ("allowed", "cpu", "")
    assert 100e6 < int(str(image["size_bytes"])) < 2e9
    assert str(image["reference"]).endswith(f"/minicluster/notebook@{image['digest']}")


async def test_an_image_that_is_not_offered_runs_nowhere(offering: LabCluster, people: People) -> None:
    """The platform's own image exists, and every node could pull it, but it is not offered."""
    other = offering.images.hub
    async with people.logged_in("mallory") as mallory:
        with pytest.raises(VisitFailed, match="answers 400") as refused:
            await mallory.start_server(image=other)
        assert f"{messages.NO_SUCH_IMAGE} '{other}'. Images: notebook, notebook:1" in str(refused.value)
        page = await forged(mallory, other)
        assert f"{messages.NO_SUCH_IMAGE} &#39;{other}&#39;. Images: notebook, notebook:1" in page, page
    assert not offering.services("server")
    async with people.at_work("mallory") as mallory:
        before = (await mallory.ask("api/jobs"))["jobs"]
        async with mallory.kernel() as kernel:
            failure = error(await kernel.run(f"%%distribute --nodes 1 --image {other}\n1"))
            assert f"image {other}: this cluster does not run it" in failure
            assert "give one of: notebook, notebook:1" in failure
        spec = {"payload_sha256": "0" * 64, "image": other}
        body = {"idempotency_key": "a-forged-one", "spec": spec}
        with pytest.raises(VisitFailed, match="answers 422") as refused:
            await mallory.visitor.call("POST", f"{SERVICE_PATH}api/jobs", SERVICE_PATH, json=body)
        assert "image_not_allowed" in str(refused.value) and other in str(refused.value)
        assert (await mallory.ask("api/jobs"))["jobs"] == before
    check_nothing_left(offering)


async def forged(person: Person, image: str) -> str:
    """Submit the spawn page's form with an image that is not in its list; return the answer's page."""
    form = await person.visitor.http.get(f"/hub/spawn/{person.visitor.name}")
    assert "notebook:1</option>" in form.text and image not in form.text
    sent = {"image": image, "_xsrf": person.visitor.xsrf("/hub/")}
    answer = await person.visitor.http.post(f"/hub/spawn/{person.visitor.name}", data=sent)
    return "".join(_ALERT.findall(answer.text)) or answer.text


def test_a_tag_that_is_moved_stays_the_image_that_it_was(offering: LabCluster, lab: Lab, moving: str) -> None:
    moved = move(lab, "second")
    with offering.first.docker() as client:
        now = client.inspect_distribution(f"127.0.0.1:5101/{MOVING}")["Descriptor"]["digest"]
    assert now == moved != moving, "what an engine would pull by the tag"
    kill_and_wait(offering, "service")
    repository = MOVING.partition(":")[0]
    with administrator(offering) as jobs:
        for name in ("notebook:1", f"127.0.0.1:5101/{MOVING}"):
            done = jobs.wait(jobs.submit(_LOOK, image=name))
            assert done["state"] == "succeeded", jobs.history(done["id"])
            assert jobs.log(done["id"]) == "first\n"
        (image,) = [
            one for one in jobs.http.get("api/images").json()["images"] if one["name"] == "notebook:1"
        ]
        assert (image["digest"], image["reference"].partition("@")[2]) == (moving, moving)
        spec = {"payload_sha256": "0" * 64, "image": f"127.0.0.1:5101/{repository}@{moved}"}
        answer = jobs.http.post("api/jobs", json={"idempotency_key": "the-moved-one", "spec": spec})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "image_not_allowed")
    check_nothing_left(offering)
