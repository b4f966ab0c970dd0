"""Two users at once: each has their own server, home, jobs and secrets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from minicluster_hub.engines.swarm.names import server_name
from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.errors import VisitFailed
from minicluster_hub.launch.kernel import KernelConnection

from .. import messages
from .attacks.secrecy import environments, inspections, secrets
from .behind import containers
from .cluster import LabCluster, Person
from .people import People, text
from .remains import check_nothing_left, wait_none

# Both GPUs of each node: only one user's job fits at a time.
ALL_SLOTS = "--nodes 3 --gpus-per-node 2 --ranks-per-node 1"
TRAIN = """%%distribute {options} --name {name} --pull weight,ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
x = torch.arange(dist.get_rank(), 12, 3).unsqueeze(1) / 12
for step in range(200):
    loss = ((model(x) - {slope} * x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weight, ranks = model.module.weight.item(), dist.get_world_size()
"""
LATER = "%%distribute {options} --detach --name {name}\nimport time\ntime.sleep({last_s})\n"


async def jobs_of(person: Person) -> list[dict[str, Any]]:
    return (await person.ask("api/jobs"))["jobs"]


async def refusal(person: Person, method: str, path: str, under: str) -> str:
    """Send a request that is refused; return the answer."""
    with pytest.raises(VisitFailed) as refused:
        await person.visitor.call(method, path, under)
    return str(refused.value)


async def test_two_users_train_at_once_and_see_nothing_of_each_other(
    cluster: LabCluster, people: People
) -> None:
    async with (
        people.at_work("ada") as ada,
        people.at_work("grace") as grace,
    ):
        async with ada.kernel() as hers, grace.kernel() as other:
            await asyncio.gather(train(hers, "of-ada", 2), train(other, "of-grace", 5))
            await the_queue_is_fair(ada, grace, hers, other)
        (her_job, *_), (other_job, *_) = await jobs_of(ada), await jobs_of(grace)
        await sees_nothing(ada, "grace", other_job["id"])
        await sees_nothing(grace, "ada", her_job["id"])
    check_nothing_left(cluster)


async def train(kernel: KernelConnection, name: str, slope: int) -> None:
    """Fit a line on all three nodes, and check its slope."""
    text(await kernel.run(TRAIN.format(options="--nodes 3", name=name, slope=slope)))
    assert abs(float(await kernel.evaluate("weight")) - slope) < 0.1
    assert await kernel.evaluate("ranks") == "3"


async def the_queue_is_fair(
    ada: Person, grace: Person, hers: KernelConnection, other: KernelConnection
) -> None:
    """Check that Ada's second job does not overtake Grace's, although Ada's gang is warm."""
    first = await send(ada, hers, "first", 3600)
    await ended(ada, first, "started_at")
    second, third = await send(grace, other, "second", 0), await send(ada, hers, "third", 0)
    waiting = await grace.ask(f"api/jobs/{second}")
    assert (waiting["state"], waiting["queue_position"]) == ("queued", 1)
    assert f"job {first} ends" in waiting["reason"], waiting["reason"]
    assert (await ada.ask(f"api/jobs/{third}"))["queue_position"] == 2
    await ada.visitor.call("POST", f"{SERVICE_PATH}api/jobs/{first}/stop", SERVICE_PATH)
    jobs = [await ended(ada, first), await ended(grace, second), await ended(ada, third)]
    assert [job["state"] for job in jobs] == ["stopped", "succeeded", "succeeded"]
    assert jobs[0]["ended_at"] <= jobs[1]["started_at"] <= jobs[1]["ended_at"] <= jobs[2]["started_at"]


async def send(person: Person, kernel: KernelConnection, name: str, last_s: float) -> int:
    """Submit a job that takes all slots; return its id."""
    text(await kernel.run(LATER.format(options=ALL_SLOTS, name=name, last_s=last_s)))
    return next(job["id"] for job in await jobs_of(person) if job["name"] == name)


async def ended(person: Person, job: int, mark: str = "ended_at") -> dict[str, Any]:
    """Wait until a job has this time set; return the job."""
    while not (found := await person.ask(f"api/jobs/{job}"))[mark]:
        assert mark == "ended_at" or not found["ended_at"], found
        await asyncio.sleep(0.3)
    return found


async def sees_nothing(person: Person, other: str, job: int) -> None:
    """Check that this user sees neither the other's jobs nor the other's server."""
    assert {seen["owner"] for seen in await jobs_of(person)} == {person.visitor.name}
    for method, path in (("GET", ""), ("GET", "/events"), ("GET", "/log?rank=0"), ("POST", "/stop")):
        address = f"{SERVICE_PATH}api/jobs/{job}{path}"
        assert "answers 404" in await refusal(person, method, address, SERVICE_PATH)
    for path in (f"/user/{other}/api/status", f"/user/{other}/lab"):
        answer = await person.visitor.http.get(path)
        assert answer.status_code in (403, 404), f"{path}: {answer.status_code}"
    assert "answers 404" in await refusal(person, "GET", f"/hub/api/users/{other}", "/hub/")
    assert "answers 404" in await refusal(person, "DELETE", f"/hub/api/users/{other}/server", "/hub/")


async def test_a_home_is_found_again_on_its_node_and_nowhere_else(
    cluster: LabCluster, people: People
) -> None:
    async with people.at_work("ada") as ada:
        node = node_of_server(cluster, "ada")
        async with ada.kernel() as kernel:
            await kernel.run("from pathlib import Path; Path('~/kept.txt').expanduser().write_text('mine')")
        await ada.stop_server()
        wait_none(lambda: servers_of(cluster, "ada"), "the server is there")
        elsewhere = next(name for name in ("node1", "node2", "node3") if name != node)
        with pytest.raises(VisitFailed) as refused:
            await ada.start_server(node=elsewhere)
        assert f"The {messages.HOME_IS_ON_NODE.format(user='ada', node=node)}" in str(refused.value)
        assert f"Choose {node}, or no node at all." in str(refused.value)
        assert not servers_of(cluster, "ada")
        await ada.start_server()
        assert node_of_server(cluster, "ada") == node
        async with ada.kernel() as kernel:
            assert await kernel.evaluate("open('/home/mini/kept.txt').read()") == "'mine'"
    check_nothing_left(cluster)


def servers_of(cluster: LabCluster, owner: str) -> list[str]:
    return [name for name in cluster.services("server") if name == server_name(owner, "")]


def node_of_server(cluster: LabCluster, owner: str) -> str:
    found = [one for one in containers(cluster.lab) if (one.role, one.owner) == ("server", owner)]
    assert len(found) == 1, found
    return found[0].node


async def test_no_inspection_and_no_environment_shows_a_token(cluster: LabCluster, people: People) -> None:
    async with people.at_work("grace") as grace:
        async with grace.kernel() as kernel:
            output = text(await kernel.run("%%distribute --nodes 3\nimport os\nprint(dict(os.environ))"))
            token = await kernel.evaluate("__import__('os').environ['JUPYTERHUB_API_TOKEN']")
        assert "'WORLD_SIZE': '3'" in output
        known = secrets(cluster)
        roles = {container.role for container in known}
        assert {"hub", "proxy", "service", "relay", "registry", "server", "task"} <= roles
        tokens = {token.strip("'")}.union(*known.values())
        shown = json.dumps(inspections(cluster))
        assert not [value for value in tokens if value in shown or value in output]
        tasks = [container for container in known if container.role == "task"]
        assert len(tasks) == 3
        for task in tasks:
            environment = environments(cluster, task)
            assert "MINICLUSTER_TASK=" in environment
            assert not [value for value in known[task] if value in environment]
    check_nothing_left(cluster)
