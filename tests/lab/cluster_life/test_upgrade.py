"""An upgrade from another release with running jobs. MINICLUSTER_FORMER names that release's images."""

import asyncio
import dataclasses
import os
import time

import pytest

from minicluster.wire import JobState
from minicluster_hub.launch.demo import SERVICE_PATH

from ..cluster import LabCluster, Person
from ..machines.images import push
from ..people import text
from .test_up import fresh as fresh
from .test_up import machines as machines

FORMER = os.environ.get("MINICLUSTER_FORMER", "").split()
WITHIN_S = 300
pytestmark = [
    pytest.mark.apart("it makes machines of its own"),
    pytest.mark.skipif(not FORMER, reason="MINICLUSTER_FORMER names no images of another release"),
]

HOLDER, STEPS = "somebody", 90
TRAINING = f"""%%distribute --nodes 3 --detach --name through
import time, torch, torch.distributed as dist
total = torch.zeros(1)
for step in range({STEPS}):
    one = torch.ones(1)
    dist.all_reduce(one)
    total += one
    print("step", step, flush=True)
    time.sleep(1)
seen = total.item()
"""


async def test_jobs_run_on_wait_on_and_reservations_stay_through_an_upgrade(fresh: LabCluster) -> None:
    newer = fresh.images
    hub, notebook = (push(name, fresh.lab.registry) for name in FORMER)
    fresh.images = dataclasses.replace(newer, hub=hub, notebook=notebook)
    fresh.up()
    fresh.join()
    async with fresh.person() as admin:
        await admin.start_server()
        async with admin.kernel() as kernel:
            await kernel.run(TRAINING)
            await until_said(admin, 1, "step 3\n")
            await kernel.run("%%distribute --nodes 3 --detach --timeout 1h --name behind\nafter = 7")
            await reserve_tomorrow(admin)
            fresh.images = newer
            fresh.command("upgrade", f"--notebook-image={newer.notebook}")
    async with fresh.person() as admin:
        await admin.visitor.wait_server()
        await admin.visitor.http.get(SERVICE_PATH)
        assert [job["state"] for job in (await admin.ask("api/jobs"))["jobs"]] == ["queued", "running"]
        await succeeds(admin, 1)
        await succeeds(admin, 2)
        log = await log_of(admin, 1)
        assert [line for line in log.split("\n") if line.startswith("step")] == [
            f"step {step}" for step in range(STEPS)
        ], "no step was lost or done again"
        kept = await admin.ask("api/reservations")
        assert [one["holder"] for one in kept["claims"]] == [HOLDER]
        async with admin.kernel() as kernel:
            assert "3.0" in text(await kernel.run(f"%distribute result 1\nseen / {STEPS}"))
            assert "7" in text(await kernel.run("%distribute result 2\nafter"))


async def reserve_tomorrow(admin: Person) -> None:
    """Reserve a slot by the API path of both releases."""
    begin = time.time() + 86400
    request = {
        "kind": "reservation",
        "holder": HOLDER,
        "slots": 1,
        "begins_at": begin,
        "ends_at": begin + 3600,
    }
    await admin.visitor.call("POST", f"{SERVICE_PATH}api/claims", SERVICE_PATH, json=request)


async def log_of(person: Person, job_id: int) -> str:
    return (await person.visitor.http.get(f"{SERVICE_PATH}api/jobs/{job_id}/log")).text


async def until_said(person: Person, job_id: int, words: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while words not in await log_of(person, job_id):
            await asyncio.sleep(0.5)


async def succeeds(person: Person, job_id: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not JobState((job := await person.ask(f"api/jobs/{job_id}"))["state"]).terminal:
            await asyncio.sleep(0.5)
    assert job["state"] == "succeeded", job
