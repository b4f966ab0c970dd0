"""Packages that a user installs with pip: locally, on a job's nodes, then in an image for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from minicluster_hub.launch.kernel import KernelConnection

from ... import messages
from ...service.publishing.index import Index
from ..cluster import LabCluster
from ..jobs import Jobs, administrator, counting
from ..people import People, error, text
from ..remains import check_nothing_left
from .catalogue import judge, listed, retire_published
from .test_images import NODES

INSTALLED = "/opt/minicluster/lib/python"
ALL_SLOTS = {"slots_per_node": 2, "ranks_per_node": 1}
_USES = "import tinytints\ncolour, place = tinytints.RED, tinytints.__file__\n"
_LACKS = f"tinytints was installed with pip here, the {messages.RANKS_LACK} it"


@pytest.fixture(autouse=True)
def as_before(offering: LabCluster) -> Iterator[None]:
    """Check afterwards that nothing runs, and that no published image is offered."""
    yield
    retire_published(offering)
    check_nothing_left(offering)


def test_a_package_goes_from_one_notebook_to_everybody_until_it_is_retired(
    offering: LabCluster, people: People
) -> None:
    digest = asyncio.run(published_and_used(offering, people))
    with administrator(offering) as jobs:
        retire(jobs, digest)


async def published_and_used(offering: LabCluster, people: People) -> str:
    """Install, try, publish; an administrator allows the image; another user uses it. Return the digest."""
    async with people.at_work("edith") as edith, edith.kernel() as kernel:
        await install(kernel, "tinytints==1.0")
        await for_one_job(kernel)
        digest = await publish(kernel, "vision")
        waits = error(await kernel.run(f"%%distribute --nodes 3 --image vision\n{_USES}"))
        assert f"image vision: {messages.IMAGE_WAITS}" in waits
        async with offering.person() as admin:
            assert (await judge(admin, digest, "allow"))["state"] == "allowed"
        output = text(await kernel.run(f"%%distribute --nodes 3 --image vision\n{_USES}"))
        assert _LACKS not in output
        assert (await kernel.evaluate("place"))[1:].startswith(INSTALLED)
        image = (await listed(edith))["vision"]
        assert (image["nodes"], image["owner"], image["device"]) == (NODES, "edith", "cpu")
        assert [(one["name"], one["version"]) for one in image["packages"]] == [("tinytints", "1.0")]
        assert "tinytints 1.0" in text(await kernel.run("%distribute images"))
        assert await publish(kernel, "vision") == digest, "the same packages on the same base"
    await another_works_in_it(people)
    return digest


async def install(kernel: KernelConnection, *packages: str) -> None:
    output = text(await kernel.run(f"%pip install {' '.join(packages)}"))
    assert f"Successfully installed {' '.join(packages).replace('==', '-')}" in output


async def for_one_job(kernel: KernelConnection) -> None:
    """Check that the package works locally, and on the nodes only if the cell requests it."""
    assert await kernel.evaluate("__import__('tinytints').RED") == "'ff0000'"
    lacks = error(await kernel.run(f"%%distribute --nodes 3\n{_USES}"))
    assert _LACKS in lacks and "--sync-env" in lacks and "No module named 'tinytints'" in lacks
    assert _LACKS not in text(await kernel.run(f"%%distribute --nodes 3 --sync-env\n{_USES}"))
    assert await kernel.evaluate("colour") == "'ff0000'"


async def publish(kernel: KernelConnection, name: str) -> str:
    """Publish the installed packages; return the digest."""
    output = text(await kernel.run(f"made = %distribute publish {name}\nmade"))
    assert f"{name} {messages.IS_PUBLISHED} tinytints 1.0" in output
    assert "Successfully installed tinytints-1.0" in output, "pip's own words are shown"
    return (await kernel.evaluate("made.image.digest")).strip("'")


async def another_works_in_it(people: People) -> None:
    """Another user starts a server with the image; the package is in the notebook and on its ranks."""
    async with people.at_work("walter", image="vision") as walter, walter.kernel() as kernel:
        assert (await kernel.evaluate("__import__('tinytints').__file__"))[1:].startswith(INSTALLED)
        output = text(await kernel.run(f"%%distribute --nodes 1\n{_USES}"))
        assert _LACKS not in output
        assert (await kernel.evaluate("place"))[1:].startswith(INSTALLED)
        reference = (await listed(walter))["vision"]["reference"]
        assert "/published/edith/vision@sha256:" in reference
        assert await kernel.evaluate("__import__('os').environ['MINICLUSTER_IMAGE']") == repr(reference)


async def test_what_pip_cannot_install_again_is_told_in_pips_words(
    offering: LabCluster, people: People, index: Index
) -> None:
    wanted = "ERROR: Could not find a version that satisfies the requirement tinyghost==1.0"
    index.add("tinyghost", "1.0", {"tinyghost.py": "IS_THERE = True\n"})
    async with people.at_work("greta") as greta, greta.kernel() as kernel:
        await install(kernel, "tinyghost==1.0")
        index.remove("tinyghost", "1.0")
        assert wanted in error(await kernel.run("%distribute publish ghosts"))
        assert wanted in error(await kernel.run("%%distribute --nodes 1 --sync-env\nimport tinyghost\n"))
        assert "ghosts" not in await listed(greta)
        jobs = (await greta.ask("api/jobs"))["jobs"]
        assert [job["state"] for job in jobs] == ["failed", "failed"]
        assert wanted in jobs[1]["error"]["message"], "the job's page tells it, too"


def retire(jobs: Jobs, digest: str) -> None:
    """Retire the image: waiting jobs fail with a reason; running ones continue."""
    runs = jobs.submit(counting(6000), nodes=3, image="vision", **ALL_SLOTS)
    jobs.wait_log(runs, "step 1")
    waits = jobs.submit(counting(1), nodes=3, image="vision", **ALL_SLOTS)
    assert jobs.wait(waits, "queued")["state"] == "queued"
    jobs.http.post(f"api/images/{digest}/retire").raise_for_status()
    done = jobs.wait(waits)
    assert done["state"] == "failed" and messages.RETIRED_MEANWHILE in done["error"]["message"]
    assert jobs.job(runs)["state"] == "running"
    jobs.stop(runs)
    assert jobs.wait(runs)["state"] == "stopped"
    with pytest.raises(AssertionError, match=f"image vision: {messages.IMAGE_WAS_RETIRED}"):
        jobs.submit(counting(1), image="vision")
