"""Slots of notebook servers over the API: permissions, one ledger with jobs, reclaimed warm slots."""

import asyncio
import time

import pytest

from minicluster.wire import Job, ServerList, ServerPlacement
from minicluster_hub.http_server import API
from minicluster_hub.scheduling.servers import ServerLimits
from minicluster_hub.web.route import Who, routes_in

from .... import messages
from ....patience import WITHIN_S
from ...machines import MemoryQueue

SPAWNER = "spawner-token"
ROUTES = [route for route in routes_in(API) if route.who is Who.SPAWNER]


@pytest.fixture
async def lab(start_api):
    """Three nodes with two GPUs each; a notebook server may have both GPUs of a node."""
    async with start_api(servers=ServerLimits(max_gpus=2, max_gpu_s=3600.0)) as started:
        started.engine.kinds = ("gpu", "gpu")
        yield started


async def put(api, owner, server="-", token=SPAWNER, **ask):
    return await api.ask("PUT", f"api/servers/{owner}/{server}", token, json=ask)


async def placed(api, owner, server="-", **ask):
    answer = await put(api, owner, server, **ask)
    assert answer.status_code == 200, answer.text
    return ServerPlacement.model_validate_json(answer.content)


async def refused(api, owner, server="-", **ask):
    answer = await put(api, owner, server, **ask)
    assert answer.status_code == 409, answer.text
    return answer.json()["error"]


async def slots(api):
    nodes = (await api.ask("GET", "api/nodes")).json()["nodes"]
    return {(node["name"], slot["slot"]): slot for node in nodes for slot in node["slots"] if slot["owner"]}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_only_the_spawners_scope_lets_in(lab, route):
    path = route.path.format(owner="ada", server="-")
    people = ("ada-token", "root-token", "placer-token", "service-token", "prometheus-token")
    for token, status in ((None, 401), ("made-up", 401), *((token, 403) for token in people)):
        answer = await lab.ask(route.method, path, token, json={})
        assert answer.status_code == status, token
    assert answer.json()["error"]["code"] == "scope_missing"
    answer = await lab.ask(route.method, path, SPAWNER, json={})
    assert answer.status_code == route.status
    assert lab.context.store.homes() == ({"ada": "node-1"} if route.method == "PUT" else {})


async def test_the_spawners_token_opens_nothing_of_users(lab):
    for path in ("api/jobs", "api/nodes", "metrics", "api/events"):
        assert (await lab.ask("GET", path, SPAWNER)).status_code == 403


async def test_a_place_is_given_once_shown_and_given_back(lab):
    before = time.time()
    place = await placed(lab, "ada", gpus=1, gpu_s=60, image="lab/notebook:1")
    assert (place.owner, place.server, place.node, place.slots) == ("ada", "", "node-1", (0,))
    assert (place.home_node, place.expired) == ("node-1", False)
    assert before + 60 <= place.until <= time.time() + 60
    assert await placed(lab, "ada", gpus=1) == place
    other = await placed(lab, "ada", "second server", gpus=0)
    assert (other.server, other.node, other.until) == ("second server", "node-1", None)
    listed = ServerList.model_validate_json((await lab.ask("GET", "api/servers", SPAWNER)).content)
    assert listed.servers == (place, other)
    (held,) = (await slots(lab)).values()
    assert (held["owner"], held["server"], held["until"], held["warm"]) == ("ada", "", place.until, False)
    for _ in range(2):
        answer = await lab.ask("DELETE", "api/servers/ada/-", SPAWNER)
        assert (answer.status_code, answer.content) == (204, b"")
    assert await slots(lab) == {}
    assert (await placed(lab, "ada", gpus=2)).slots == (0, 1)


async def test_names_with_any_sign_travel_in_the_path(lab):
    place = await placed(lab, "ada%40uni.example", "my%2Fserver%20%C3%A4")
    assert (place.owner, place.server) == ("ada@uni.example", "my/server ä")
    assert (
        await lab.ask("DELETE", "api/servers/ada%40uni.example/my%2Fserver%20%C3%A4", SPAWNER)
    ).content == b""
    assert lab.context.store.open_state().servers == ()


async def test_each_refusal_is_a_409_with_its_code(lab):
    await placed(lab, "ada")
    assert (await refused(lab, "ada", "x", node="node-2"))["code"] == "home_elsewhere"
    assert (await refused(lab, "bob", node="node-7"))["code"] == "no_such_node"
    assert (await refused(lab, "bob", node="node-5"))["code"] == "node_down"
    assert (await refused(lab, "bob", gpus=3))["code"] == "gpu_not_allowed"
    assert (await refused(lab, "ada", gpus=1))["code"] == "place_differs"
    await placed(lab, "cid", gpus=2, node="node-2")
    error = await refused(lab, "bob", gpus=1, node="node-2")
    assert error["code"] == "no_free_gpu"
    assert "2 GPUs are held" in error["message"] and "server of cid until " in error["message"]
    assert "node" not in lab.context.store.homes()
    assert (await put(lab, "bob", gpu="1")).status_code == 422


async def test_gpus_are_for_jobs_alone_unless_the_lab_says_otherwise(api):
    assert (await placed(api, "ada")).slots == ()
    assert (await refused(api, "bob", gpus=1))["code"] == "gpu_not_allowed"


async def test_a_time_that_is_over_frees_nothing_by_itself(lab):
    place = await placed(lab, "ada", gpus=2, gpu_s=0.05, node="node-1")
    await asyncio.sleep(0.06)
    assert (await placed(lab, "ada", gpus=2)) == place.model_copy(update={"expired": True})
    error = await refused(lab, "bob", gpus=1, node="node-1")
    assert f"ada, {messages.TIME_IS_OVER}" in error["message"]
    assert {held["owner"] for held in (await slots(lab)).values()} == {"ada"}


async def test_warm_gpus_are_ended_for_a_server_and_then_given_to_it(lab):
    job, agents, runs = await lab.running(nodes=3, slots_per_node=2)
    error = await refused(lab, "bob", gpus=1)
    assert f"held by job {job.id} of ada" in error["message"]
    for agent, run in zip(agents, runs, strict=True):
        await agent.finish(run)
    await lab.until(job.id, "succeeded")
    place = await placed(lab, "bob", gpus=2)
    assert len(place.slots) == 2
    assert {held["owner"] for held in (await slots(lab)).values()} == {"bob"}


async def test_a_waiting_job_says_which_server_it_waits_for_and_starts_when_it_is_gone(lab):
    await placed(lab, "bob", gpus=1)
    job = await lab.submit(nodes=3, slots_per_node=2)
    async with asyncio.timeout(WITHIN_S):
        while "notebook server" not in job.reason:
            answer = await lab.ask("GET", f"api/jobs/{job.id}")
            job = Job.model_validate_json(answer.content)
    assert "2 are free; 1 GPU is held" in job.reason and "server of bob until " in job.reason
    metrics = (await lab.ask("GET", "metrics", "prometheus-token")).text
    assert 'minicluster_slots{kind="gpu",use="server"} 1.0' in metrics
    assert 'minicluster_servers{node="node-1"} 1.0' in metrics
    await lab.ask("DELETE", "api/servers/bob/-", SPAWNER)
    assert len(await lab.agents(job.id)) == 3


async def test_what_was_prepared_for_a_notebook_ends_with_its_owners_last_server(lab):
    await placed(lab, "ada")
    await placed(lab, "ada", "second")
    await placed(lab, "bob")
    prepared = (await lab.ask("POST", "api/gangs", json={})).json()["nodes"]
    assert prepared == ["node-1", "node-2", "node-3"]
    await lab.ask("DELETE", "api/servers/bob/-", SPAWNER)
    await lab.ask("DELETE", "api/servers/ada/-", SPAWNER)
    assert {held["owner"] for held in (await slots(lab)).values()} == {"ada"}
    await lab.ask("DELETE", "api/servers/ada/second", SPAWNER)
    async with asyncio.timeout(WITHIN_S):
        while await slots(lab):
            await asyncio.sleep(0.05)


async def test_50_servers_and_jobs_at_once_book_no_gpu_twice(lab):
    def one(number):
        if number % 5 == 0:
            return lab.submit(nodes=1, key=f"key-{number:05}", payload=b"x")
        return put(lab, f"user-{number}", gpus=1)

    answers = await asyncio.gather(*(one(number) for number in range(50)))
    places = [
        ServerPlacement.model_validate_json(answer.content)
        for answer in answers
        if not isinstance(answer, Job) and answer.status_code == 200
    ]
    stored = lab.context.store.open_state()
    keys = [(lease.node, lease.slot) for lease in stored.leases]
    assert len(keys) == len(set(keys)) == 6
    servers = {(place.node, slot) for place in places for slot in place.slots}
    jobs = {(task.node, slot) for task in stored.tasks for slot in task.slots}
    assert len(servers) == len(places)
    assert servers.isdisjoint(jobs)
    assert servers | jobs == set(keys)


async def test_a_server_gets_no_gpu_where_another_queue_owns_them(lab):
    lab.engine.batch_queue = MemoryQueue()
    answer = await put(lab, "ada", gpus=1)
    assert answer.status_code == 409, answer.text
    assert "Otherqueue owns them" in answer.json()["error"]["message"]
    assert (await put(lab, "ada", gpus=0)).status_code == 200
