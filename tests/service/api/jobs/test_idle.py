"""Idle GPUs of notebook servers: measured by data set agents, and reclaimed while the server runs."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from minicluster.wire import ServerPlacement
from minicluster_hub.engines.base import GpusRefused
from minicluster_hub.engines.capabilities import GpuHolds
from minicluster_hub.scheduling.idle import IdleLimits
from minicluster_hub.scheduling.servers import ServerLimits
from minicluster_hub.servers.idle_watch import IdleWatch

SPAWNER = "spawner-token"
LIMITS = IdleLimits(warn_s=900.0, reclaim_s=3600.0, held_bytes=1000)
WARNED, OVERDUE = 901.0, 4000.0


class Gpus(GpuHolds):
    """A fake of Swarm's services that hold servers' GPUs; records calls."""

    def __init__(self, engine):
        self.held, self.released, self.refusal = {}, [], None
        engine.gpu_holds = self

    async def hold(self, server):
        if self.refusal:
            raise GpusRefused(self.refusal)
        ids = tuple(f"GPU-{server.node}-{slot}" for slot in server.slots)
        return self.held.setdefault((server.owner, server.name), ids)

    async def release(self, owner, name):
        if self.held.pop((owner, name), None):
            self.released.append((owner, name))

    def all(self):
        return self.held


class Clock:
    """The service's clock, which tests advance."""

    def __init__(self, clock):
        self.clock, self.ahead_s = clock, 0.0

    def __call__(self):
        return self.clock() + self.ahead_s


@pytest.fixture
async def lab(start_api):
    """Three nodes with two GPUs each; a notebook server may have both GPUs of a node."""
    async with start_api(servers=ServerLimits(max_gpus=2, max_gpu_s=9e9)) as started:
        started.engine.kinds = ("gpu", "gpu")
        started.gpus = Gpus(started.engine)
        started.clock = Clock(started.context.clock)
        async with watching(started):
            yield started


@asynccontextmanager
async def watching(lab, limits=LIMITS):
    context = lab.context
    slots_changed = context.reconciler.slots_changed
    watch = IdleWatch(context.store, context.status_cache, slots_changed, limits, lab.clock, context.log)
    running = asyncio.create_task(watch.run())
    try:
        yield
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def place(lab, owner="ada", server="-", **ask):
    answer = await lab.ask("PUT", f"api/servers/{owner}/{server}", SPAWNER, json=ask)
    assert answer.status_code == 200, answer.text
    return ServerPlacement.model_validate_json(answer.content)


async def report_gpus(lab, placed, idle_s, held_bytes=0):
    """Report GPUs as the data set agent of the server's node, at the service's present time."""
    data_set_tracker = lab.context.status_cache.data_set_tracker
    readings = [{"gpu": gpu, "idle_s": idle_s, "held_bytes": held_bytes} for gpu in placed.gpus]
    body = {"nodes": [placed.node], "sets": [], "gpus": readings}
    data_set_tracker._clock = lab.clock
    headers = {"Authorization": f"keeper {data_set_tracker.tokens.issue([placed.node])}"}
    answer = await lab.client(**headers).post("api/data-agents/report", json=body)
    assert answer.status_code == 204, answer.text


async def left_idle(lab, placed, **held):
    """Leave a server's GPUs idle until its owner is warned, then until they are to be reclaimed."""
    lab.clock.ahead_s += WARNED
    await report_gpus(lab, placed, WARNED, **held)
    await until(lab, placed, lambda server: server.warned_at is not None)
    lab.clock.ahead_s += OVERDUE - WARNED
    await report_gpus(lab, placed, OVERDUE, **held)


async def until(lab, placed, seen):
    async with asyncio.timeout(5):
        while not seen(lab.context.store.server(placed.owner, placed.server)):
            await asyncio.sleep(0.002)


async def until_free(lab):
    async with asyncio.timeout(5):
        while lab.context.store.open_state().leases:
            await asyncio.sleep(0.002)


async def shown(lab):
    nodes = (await lab.ask("GET", "api/nodes")).json()["nodes"]
    return {(node["name"], slot["slot"]): slot for node in nodes for slot in node["slots"] if slot["owner"]}


async def test_a_server_is_told_its_gpus_and_they_are_held_as_long_as_its_place(lab):
    placed = await place(lab, gpus=2)
    assert placed.gpus == ("GPU-node-1-0", "GPU-node-1-1")
    assert await place(lab, gpus=2) == placed, "asked again, the same"
    assert (await place(lab, "bob")).gpus == ()
    assert set(lab.gpus.held) == {("ada", "")}
    await lab.ask("DELETE", "api/servers/ada/-", SPAWNER)
    assert (lab.gpus.held, lab.gpus.released) == ({}, [("ada", "")])


async def test_gpus_that_the_engine_cannot_have_refuse_the_server_and_leave_nothing(lab):
    lab.gpus.refusal = "Docker finds no free GPU: node-1 has no room (insufficient resources)"
    answer = await lab.ask("PUT", "api/servers/ada/-", SPAWNER, json={"gpus": 1})
    assert answer.status_code == 409
    assert answer.json()["error"]["message"] == lab.gpus.refusal
    assert (lab.context.store.open_state().servers, await shown(lab)) == ((), {})


async def test_idle_gpus_are_warned_about_and_everybody_sees_it(lab):
    placed = await place(lab, gpus=1)
    await report_gpus(lab, placed, 0.0)
    lab.clock.ahead_s += WARNED
    await report_gpus(lab, placed, WARNED)
    async with asyncio.timeout(5):
        while not (await shown(lab))["node-1", 0]["idle_since"]:
            await asyncio.sleep(0.002)
    slot = (await shown(lab))["node-1", 0]
    assert slot["reclaim_at"] - slot["idle_since"] == LIMITS.reclaim_s
    assert (slot["owner"], slot["held_bytes"], placed.reclaimed) == ("ada", 0, False)
    job = await lab.submit("bob", nodes=3, slots_per_node=2)
    async with asyncio.timeout(5):
        while (
            "and left idle" not in (await lab.ask("GET", f"api/jobs/{job.id}", "bob-token")).json()["reason"]
        ):
            await asyncio.sleep(0.002)
    await report_gpus(lab, placed, 0.0)
    await until(lab, placed, lambda server: server.warned_at is None)
    async with asyncio.timeout(5):
        while (await shown(lab))["node-1", 0]["idle_since"]:
            await asyncio.sleep(0.002)


async def test_after_an_hour_a_waiting_job_has_them_and_the_server_its_place(lab):
    placed = await place(lab, gpus=2)
    job = await lab.submit("bob", nodes=3, slots_per_node=2)
    await left_idle(lab, placed)
    assert len(await lab.agents(job.id)) == 3
    assert lab.gpus.released == [("ada", "")]
    listed = (await lab.ask("GET", "api/servers", SPAWNER)).json()["servers"]
    assert [(one["owner"], one["slots"], one["until"], one["reclaimed"]) for one in listed] == [
        ("ada", [], None, True)
    ]
    answer = await lab.ask("PUT", "api/servers/ada/-", SPAWNER, json={"gpus": 2})
    assert answer.json()["error"]["code"] == "place_differs", "a new start asks for a new place"


async def take_again(lab, token="ada-token", server="-"):
    return await lab.ask("POST", f"api/gpus/{server}", token)


async def test_who_comes_back_takes_the_same_gpus_again_if_they_are_free(lab):
    placed = await place(lab, gpus=2, node="node-2")
    assert (await take_again(lab)).json()["slots"] == [0, 1], "it has them"
    await left_idle(lab, placed)
    await until_free(lab)
    running, agents, runs = await lab.running("bob", nodes=3, slots_per_node=1)
    answer = await take_again(lab)
    assert answer.status_code == 409
    assert f"held by job {running.id} of bob" in answer.json()["error"]["message"]
    for agent, run in zip(agents, runs, strict=True):
        await agent.finish(run)
    await lab.until(running.id, "succeeded")
    again = await take_again(lab)
    assert again.status_code == 200, "warm gangs make room"
    assert (again.json()["slots"], again.json()["gpus"]) == ([0, 1], list(placed.gpus))
    server = lab.context.store.server("ada", "")
    assert (server.warned_at, server.reclaimed_at) == (None, None)
    await report_gpus(lab, placed, OVERDUE)
    await report_gpus(lab, placed, 0.0)
    assert lab.context.store.server("ada", "").warned_at is None, "idle times of before are not counted"


async def test_other_gpus_than_those_it_sees_are_of_no_use_to_a_server(lab):
    placed = await place(lab, gpus=1)
    await left_idle(lab, placed)
    await until_free(lab)
    lab.gpus.held["ada", ""] = ("GPU-node-1-1",)
    answer = await take_again(lab)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "other_gpus")
    assert (lab.context.store.open_state().leases, lab.gpus.held) == ((), {})
    assert lab.context.store.server("ada", "").reclaimed_at is not None


async def test_one_takes_ones_own_gpus_alone_and_needs_the_scope_to_submit(lab):
    placed = await place(lab, gpus=1)
    await left_idle(lab, placed)
    await until_free(lab)
    assert (await take_again(lab, "bob-token")).json()["error"]["code"] == "no_gpus"
    assert (await take_again(lab, "reader-token")).status_code == 403
    assert (await take_again(lab, server="other")).json()["error"]["code"] == "no_gpus"
    assert lab.context.store.open_state().leases == ()


async def test_gpus_whose_memory_is_held_stay_and_go_when_it_is_freed(lab):
    placed = await place(lab, gpus=1)
    await left_idle(lab, placed, held_bytes=9_000_000_000)
    async with asyncio.timeout(5):
        while not (await shown(lab))["node-1", 0]["held_bytes"]:
            await asyncio.sleep(0.002)
    slot = (await shown(lab))["node-1", 0]
    assert (slot["held_bytes"], slot["reclaim_at"]) == (9_000_000_000, None)
    assert lab.gpus.released == []
    await report_gpus(lab, placed, OVERDUE, held_bytes=500)
    await until_free(lab)
    assert lab.gpus.released == [("ada", "")]


async def test_use_seen_late_and_old_readings_take_nothing(lab):
    placed = await place(lab, gpus=2)
    lab.clock.ahead_s += OVERDUE
    half = placed.model_copy(update={"gpus": placed.gpus[:1]})
    await report_gpus(lab, half, OVERDUE)
    other = await place(lab, "bob", node="node-2", gpus=1)
    lab.clock.ahead_s += WARNED
    await report_gpus(lab, other, WARNED)
    await until(lab, other, lambda server: server.warned_at is not None)
    assert lab.context.store.server("ada", "").warned_at is None, "of one of its GPUs nothing is known"


async def test_a_service_that_ended_in_between_goes_on_with_it(lab):
    placed = await place(lab, gpus=1)
    server = lab.context.store.server("ada", "")
    lab.context.store.idle.reclaim(server.id, lab.clock())
    lab.context.reconciler.slots_changed()
    await report_gpus(lab, placed, 0.0)
    await until_free(lab)
    assert lab.gpus.released == [("ada", "")]


async def test_gpus_held_for_nobody_are_freed(lab):
    placed = await place(lab, gpus=1)
    lab.gpus.held["gone", "x"] = ("GPU-a",)
    await report_gpus(lab, placed, 0.0)
    async with asyncio.timeout(5):
        while ("gone", "x") in lab.gpus.held:
            await asyncio.sleep(0.002)
    assert ("ada", "") in lab.gpus.held


async def test_the_owner_gets_notices_of_both(lab):
    placed = await place(lab, gpus=1)
    settings = {"events": ["gpu-warned", "gpu-reclaimed"], "webhook": "https://hooks.example.org/x"}
    lab.context.store.notices.save_settings("ada", _notice_settings(settings))
    await left_idle(lab, placed)
    await until_free(lab)
    notices = [json.loads(row) for row in _outbox(lab)]
    assert [one["event"] for one in notices] == ["gpu-warned", "gpu-reclaimed"]
    assert (
        "go to others at" in notices[0]["reason"] and "must not use the GPUs any more" in notices[1]["reason"]
    )


def _notice_settings(wish):
    from minicluster.wire import NoticeSettings

    return NoticeSettings.model_validate(wish)


def _outbox(lab):
    from sqlalchemy import select

    from minicluster_hub.store.tables.notices import NOTICES

    with lab.context.store._database.read() as connection:
        return list(connection.execute(select(NOTICES.c.body).order_by(NOTICES.c.id)).scalars())
