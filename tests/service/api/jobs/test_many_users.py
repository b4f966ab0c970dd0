"""Fifty users submit at once: no job is lost, none sees others' jobs, all get one slot before any has two."""

import asyncio
import hashlib
from math import inf

import pytest

from minicluster_hub.control import forecast_worker
from minicluster_hub.jobs.states import JobEvent

from ..hub import READ, SUBMIT, user_model

USERS = [f"user-{number:02}" for number in range(50)]
CELL = b"a cell"
SHA256 = hashlib.sha256(CELL).hexdigest()
SPEC = {"payload_sha256": SHA256, "nodes": {"min": 1, "max": 1}, "timeout_s": 600}


@pytest.fixture
async def crowd(api, monkeypatch):
    """Fifty users of a service under fair_share with all slots taken: clients, and a call to free slots."""
    monkeypatch.setattr(forecast_worker, "PAUSE_S", 0.2)
    for user in USERS:
        scopes = (f"{READ}!user={user}", f"{SUBMIT}!user={user}")
        api.hub.models[f"{user}-token"] = user_model(user, *scopes)
    answer = await api.ask("PUT", "api/policy", "root-token", json={"policy": "fair_share"})
    assert answer.status_code == 200, answer.text
    _, agents, runs = await api.running("root", nodes=3, timeout_s=3600)
    alive = asyncio.create_task(keep_alive(agents, runs))
    clients = {user: api.client(f"{user}-token") for user in USERS}
    for client in clients.values():
        client.timeout = 60
    yield api, clients, lambda: finish(agents, runs)
    alive.cancel()


async def keep_alive(agents, runs):
    while True:
        await asyncio.sleep(5)
        for agent, run in zip(agents, runs, strict=True):
            await agent.report(attempt=run.attempt)


async def send(client):
    """Submit two jobs at once, one of them twice, as a client without an answer would."""
    assert (await client.put(f"api/blobs/{SHA256}", content=CELL)).status_code in (200, 201, 204)
    bodies = [{"idempotency_key": f"the-key-{number}", "spec": SPEC} for number in (1, 2, 2)]
    answers = await asyncio.gather(*(client.post("api/jobs", json=body) for body in bodies))
    assert sorted(answer.status_code for answer in answers) == [200, 201, 201], answers
    return {answer.json()["id"] for answer in answers}


async def until_forecast(api, ids):
    """Wait until each of these jobs has a reason and a predicted start."""
    root = api.client("root-token")
    async with asyncio.timeout(60):
        while True:
            jobs = (await root.get("api/jobs", params={"owner": "all", "limit": 1000})).json()["jobs"]
            expected = {job["id"] for job in jobs if job["reason"] and job["expected_start_at"]}
            if expected >= ids:
                return
            await asyncio.sleep(0.1)


async def finish(agents, runs):
    await asyncio.gather(*(agent.finish(run) for agent, run in zip(agents, runs, strict=True)))


@pytest.mark.full("it is about load")
async def test_fifty_users_who_submit_at_once(crowd):
    api, clients, make_room = crowd
    store = api.context.store
    sent = dict(zip(USERS, await asyncio.gather(*map(send, clients.values())), strict=True))
    ids = set().union(*sent.values())
    assert len(ids) == 100 and len(store.jobs(None, limit=1000)) == 101, "each is stored once"
    await until_forecast(api, ids)
    for user, client in clients.items():
        jobs = (await client.get("api/jobs")).json()["jobs"]
        assert {job["id"] for job in jobs} == sent[user] and {job["owner"] for job in jobs} == {user}
        assert all(job["state"] == "queued" and job["queue_position"] for job in jobs)
    await make_room()
    turns = await first_turns(api, store, sent)
    assert sorted(turns) == USERS, "somebody had no turn among the first fifty"
    last_first = max(first for first, *_ in turns.values())
    seconds = [at for _, *more in turns.values() for at in more]
    assert last_first <= min(seconds, default=inf), "somebody's second job went before another's first"


async def first_turns(api, store, sent):
    """Stop each job once it has its slots, until fifty had; return the times by owner.

    A job that is stopped before its slots count as its owner's use does not count. Jobs started by the same
    plan have the same time.
    """
    owners = {job_id: user for user, ids in sent.items() for job_id in ids}
    turns: list[int] = []
    async with asyncio.timeout(60):
        while len(turns) < len(USERS):
            counted = {use.job_id for use in store.usage.since(0)}
            for job in store.jobs(None, open_only=True, limit=1000):
                if job.id in owners and job.id not in turns and job.id in counted and job.state == "starting":
                    turns.append(job.id)
                    api.context.reconciler.apply_event(job.id, JobEvent.STOP_ASKED)
            await asyncio.sleep(0.005)
    moments: dict[str, list[float]] = {}
    for job in turns:
        admitted = (event.at for event in store.events(job) if event.kind == "admitted")
        moments.setdefault(owners[job], []).extend(admitted)
    return {user: sorted(times) for user, times in moments.items()}
