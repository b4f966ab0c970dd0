"""Reservations, maintenance and drained nodes over the API; waiting users see the reason."""

import asyncio
import time
from dataclasses import replace

import pytest

from minicluster_hub.control import forecast_worker
from minicluster_hub.scheduling.reservations.reservation import LAPSE_S
from minicluster_hub.scheduling.servers import ServerLimits

from .... import messages
from ...machines import MemoryQueue
from ..hub import MemoryEngine
from .test_entitlements import reason


async def make(api, token="root-token", **claim):
    fields = {"kind": "reservation", "holder": "bob", "ends_at": time.time() + 3600, **claim}
    return await api.ask("POST", "api/reservations", token, json=fields)


async def post(api, path, token="root-token", **body):
    return await api.ask("POST", path, token, json=body)


async def waits_for(api, job, part):
    """Wait until a job's reason contains this text."""
    async with asyncio.timeout(10):
        while (
            part not in (shown := (await api.ask("GET", f"api/jobs/{job.id}", "root-token")).json())["reason"]
        ):
            assert shown["state"] == "queued", shown
            await asyncio.sleep(0.01)


def job_payload(api, job):
    return api.context.store.job(job.id).spec.payload_sha256


async def claims(api, token="ada-token"):
    return (await api.ask("GET", "api/reservations", token)).json()["claims"]


async def test_what_is_reserved_is_for_its_holders_and_others_are_told(api):
    assert (await make(api, slots=2)).status_code == 201
    job = await api.submit("ada", nodes=2)
    await waits_for(api, job, "2 slots are reserved for bob until ")
    mine = await api.submit("bob", nodes=2)
    assert await api.agents(mine.id), "it goes before what came before it"
    (claim,) = await claims(api)
    assert claim["told"].startswith("2 slots are reserved for bob until ") and claim["by"] == "root"
    answer = await api.ask("DELETE", f"api/reservations/{claim['id']}", "root-token")
    assert answer.status_code == 204
    await api.ask("POST", f"api/jobs/{mine.id}/stop", "bob-token")
    assert await api.agents(job.id)
    assert (await claims(api))[0]["over"] == "cancelled by root"


async def test_no_start_is_forecast_that_a_reservation_prevents(api, monkeypatch):
    monkeypatch.setattr(forecast_worker, "PAUSE_S", 0.1)
    now = time.time()
    window = {"kind": "maintenance", "holder": "", "nodes": ["node-1"], "note": "new memory"}
    assert (await make(api, **window, begins_at=now + 1000)).status_code == 201
    await api.running("bob", nodes=3, timeout_s=600)
    short = await api.submit("ada", nodes=3, timeout_s=60)
    longer = await api.submit("ada", nodes=2, timeout_s=1400)
    last = await api.submit("ada", nodes=2, timeout_s=200)
    beside_the_node = {longer.id: now + 330}
    after_it_has_begun = await forecast_starts(api, {short.id: now + 300} | beside_the_node, last.id)
    assert after_it_has_begun == [None]


async def test_no_start_is_forecast_from_which_a_job_would_run_into_a_reservation(api, monkeypatch):
    monkeypatch.setattr(forecast_worker, "PAUSE_S", 0.1)
    now = time.time()
    window = {"kind": "maintenance", "holder": "", "nodes": ["node-1", "node-2", "node-3"]}
    assert (await make(api, **window, begins_at=now + 3000)).status_code == 201
    await api.running("bob", nodes=3, timeout_s=1200)
    first = await api.submit("ada", nodes=3, timeout_s=120)
    last = await api.submit("ada", nodes=3, timeout_s=2600)
    assert await forecast_starts(api, {first.id: now + 600}, last.id) == [None], "it would start at 660 s"


async def test_who_ends_before_a_claim_begins_does_not_wait_for_one_that_it_keeps_off(api):
    tomorrow = {"begins_at": time.time() + 86_400, "ends_at": time.time() + 90_000}
    assert (await make(api, slots=1, **tomorrow)).status_code == 201
    await api.running("ada", nodes=2)
    kept_off = await api.submit("ada")
    await waits_for(api, kept_off, "1 slot is reserved for bob from ")
    assert await api.agents((await api.submit("ada", timeout_s=600)).id)
    assert (await api.ask("GET", f"api/jobs/{kept_off.id}")).json()["state"] == "queued"


async def forecast_starts(api, expected, *others):
    """Wait until jobs have these predicted starts, within a minute; return those of the others."""

    async def start(job_id):
        return (await api.ask("GET", f"api/jobs/{job_id}", "root-token")).json()["expected_start_at"]

    async with asyncio.timeout(10):
        while [await start(job_id) for job_id in expected] != [
            pytest.approx(at, abs=61) for at in expected.values()
        ]:
            await asyncio.sleep(0.05)
    await asyncio.sleep(3 * forecast_worker.PAUSE_S)
    return [await start(job_id) for job_id in others]


async def test_a_group_has_it_together_as_the_hub_names_its_members(api):
    api.hub.models["bob-token"]["groups"] = ["vision"]
    assert (await make(api, holder="group:vision", slots=3)).status_code == 201
    other = await api.submit("ada")
    await waits_for(api, other, f"{messages.RESERVED_FOR_GROUP} vision")
    job = await api.submit("bob", nodes=3)
    assert await api.agents(job.id)
    assert api.context.store.owners.groups_of("bob") == ("vision",)


async def test_it_lapses_when_nobody_comes_and_the_job_behind_it_starts(api):
    made = await make(api, slots=3)
    job = await api.submit("ada")
    await waits_for(api, job, "reserved for bob")
    began = made.json()["begins_at"] - LAPSE_S
    with api.context.store._database.write() as connection:
        connection.exec_driver_sql("UPDATE reservations SET begins_at = ?", (began,))
    api.context.store.reservations.forget_known()
    api.context.reconciler.wake()
    assert await api.agents(job.id)
    over = (await claims(api))[0]["over"]
    assert over.startswith("lapsed: bob did not ") and over.endswith(" 15 minutes")


async def test_one_that_was_used_stays_to_its_end(api):
    await make(api, slots=1)
    job = await api.submit("bob")
    await api.agents(job.id)
    async with asyncio.timeout(10):
        while api.context.store.reservations.open()[0].used_at is None:
            await asyncio.sleep(0.01)


async def test_before_maintenance_only_jobs_that_end_by_then_start_there(api):
    soon = time.time() + 3600
    made = await make(
        api, kind="maintenance", holder="", nodes=["node-1", "node-2"], begins_at=soon, ends_at=soon + 60
    )
    assert made.status_code == 201, made.text
    long = await api.submit("ada", nodes=2)
    await waits_for(api, long, "node-1 and node-2 are in maintenance from ")
    short = await api.submit("bob", nodes=3, timeout_s=600)
    assert await api.agents(short.id)


async def test_a_drained_node_takes_nothing_new_until_it_is_taken_back(api):
    answer = await post(api, "api/nodes/node-2/drain", note="new memory")
    assert (answer.status_code, answer.json()["told"]) == (200, "node-2 is drained (new memory)")
    again = await post(api, "api/nodes/node-2/drain")
    assert again.json()["id"] == answer.json()["id"]
    job = await api.submit(nodes=3)
    await reason(api, job, "node-2 is drained (new memory)")
    nodes = (await api.ask("GET", "api/nodes")).json()["nodes"]
    assert {node["name"]: node["closed"] for node in nodes if node["up"]} == {
        "node-1": "",
        "node-2": "node-2 is drained (new memory)",
        "node-3": "",
    }
    spec = {"payload_sha256": job_payload(api, job)}
    body = {"idempotency_key": "a-job-on-all-nodes", "spec": spec}
    all_nodes = (await api.ask("POST", "api/jobs", json=body)).json()
    assert api.context.store.job(all_nodes["id"]).spec.nodes.max == 2
    await api.ask("POST", f"api/jobs/{all_nodes['id']}/stop")
    assert (await post(api, "api/nodes/node-2/undrain")).status_code == 200
    assert await api.agents(job.id)


async def test_a_node_that_the_engine_closes_takes_no_job_and_says_why(api, monkeypatch):
    nodes = [
        replace(node, closed="it is a manager" if node.name == "node-1" else "")
        for node in api.engine.nodes()
    ]
    monkeypatch.setattr(api.engine, "nodes", lambda: tuple(nodes))
    job = await api.submit("ada", nodes=2)
    assert await api.agents(job.id)
    assert {launch.node for launch in api.engine.launches.values()} == {"node-2", "node-3"}
    shown = (await api.ask("GET", "api/nodes")).json()["nodes"]
    assert {node["name"]: node["closed"] for node in shown}["node-1"] == "it is a manager"


async def test_it_is_kept_over_a_restart(start_api):
    async with start_api() as api:
        await post(api, "api/nodes/node-2/drain", note="new memory")
        api.hub.models["ada-token"]["groups"] = ["vision"]
        await api.submit()
    async with start_api() as api:
        assert [claim["told"] for claim in await claims(api)] == ["node-2 is drained (new memory)"]
        assert api.context.store.owners.groups_of("ada") == ("vision",)
        await reason(api, await api.submit("bob", nodes=3), "node-2 is drained (new memory)")


async def test_notebook_servers_get_neither_reserved_gpus_nor_drained_nodes(start_api):
    async with start_api(servers=ServerLimits(max_gpus=1)) as api:
        api.engine.kinds = ("gpu",)
        await make(api, slots=3)
        await waits_for(api, await api.submit("ada"), "reserved")
        answer = await api.ask("PUT", "api/servers/ada/-", "spawner-token", json={"gpus": 1})
        assert answer.status_code == 409
        assert "3 slots are reserved for bob until " in answer.json()["error"]["message"]
        answer = await api.ask("PUT", "api/servers/bob/-", "spawner-token", json={"gpus": 1})
        assert answer.status_code == 200, answer.text
        await post(api, "api/nodes/node-3/drain")
        answer = await api.ask("PUT", "api/servers/ada/-", "spawner-token", json={"node": "node-3"})
        assert answer.json()["error"]["message"] == "node-3 is drained"


@pytest.mark.parametrize(
    ("claim", "code"),
    [
        ({"nodes": ["node-9"]}, "no_such_node"),
        ({"slots": 6}, "too_large"),
        ({"holder": ""}, "bad_claim"),
        ({"kind": "maintenance", "holder": "", "nodes": []}, "bad_claim"),
        ({"kind": "maintenance", "nodes": ["node-1"]}, "bad_claim"),
        ({"ends_at": 1.0}, "empty_period"),
        ({"slots": 0}, "invalid"),
        ({"kind": "party"}, "invalid"),
        ({"colour": "red"}, "unknown_field"),
    ],
)
async def test_what_cannot_be_is_refused_in_words(api, claim, code):
    answer = await make(api, **claim)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, code)
    assert await claims(api) == []


async def test_only_admins_change_something(api):
    for answer in (
        await make(api, token="ada-token"),
        await post(api, "api/nodes/node-1/drain", "ada-token"),
        await post(api, "api/nodes/node-1/undrain", "ada-token"),
        await api.ask("DELETE", "api/reservations/1", "ada-token"),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "scope_missing")
    assert (await api.ask("DELETE", "api/reservations/1", "root-token")).status_code == 404
    assert (await post(api, "api/nodes/node-9/drain")).json()["error"]["code"] == "no_such_node"


async def test_nothing_is_reserved_where_another_queue_owns_the_slots(start_api):
    engine = MemoryEngine()
    engine.batch_queue = MemoryQueue()
    async with start_api(engine=engine) as api:
        for path, body in (
            ("api/reservations", {"kind": "maintenance", "nodes": ["node-1"], "ends_at": 4e9}),
            ("api/nodes/node-1/drain", {"note": "a new fan"}),
        ):
            answer = await api.ask("POST", path, "root-token", json=body)
            assert answer.status_code == 409, answer.text
            assert "Otherqueue owns the slots" in answer.json()["error"]["message"]
