"""Users' entitlements over the API: priorities, quotas; and what-if results of other policies."""

import asyncio
import time

import pytest

from minicluster.wire import WhatIfReport
from minicluster_hub.jobs.records import UseRecord
from minicluster_hub.scheduling.servers import ServerLimits

from .... import messages
from ....patience import WITHIN_S


@pytest.fixture
async def api_of(start_api):
    """A function that starts services with the test's quotas."""
    return lambda **quotas: start_api(quotas=quotas)


async def refused(api, owner="ada", nodes=1, **spec):
    """Return the answer's status and code for a refused job."""
    body = {
        "idempotency_key": "key-of-a-refused-one",
        "spec": {"payload_sha256": "a" * 64, "nodes": {"min": nodes, "max": nodes}, **spec},
    }
    answer = await api.ask("POST", "api/jobs", f"{owner}-token", json=body)
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


async def reason(api, job, told):
    """Wait until a job waits for that reason."""
    async with asyncio.timeout(WITHIN_S):
        while (shown := (await api.ask("GET", f"api/jobs/{job.id}", "root-token")).json())["reason"] != told:
            assert shown["state"] == "queued", shown
            await asyncio.sleep(0.01)
    return shown


async def test_users_priorities_have_a_limit_and_admins_have_none(api):
    assert await refused(api, priority=51) == (
        422,
        "priority_too_high",
        "--priority is 51; your jobs may have up to 50",
    )
    job = await api.submit("root", priority=99)
    assert api.context.store.job(job.id).spec.priority == 99
    assert (await refused(api, "root", priority=100))[:2] == (422, "invalid")


async def test_a_job_over_the_quota_waits_with_the_reason_and_starts_when_it_is_within(api_of):
    async with api_of(ada={"slots": 2}) as api:
        first, agents, runs = await api.running(nodes=1)
        second = await api.submit(nodes=2)
        shown = await reason(api, second, messages.OVER_YOUR_SLOTS.format(quota=2, used=1))
        assert shown["expected_start_at"] is None and shown["queue_position"] == 1
        others = await api.submit("bob", nodes=2)
        await api.agents(others.id)
        await agents[0].finish(runs[0])
        await api.until(first.id, "succeeded")
        await api.ask("POST", f"api/jobs/{others.id}/stop", "bob-token")
        assert await api.agents(second.id)


async def test_a_job_that_no_quota_lets_run_is_refused(api_of):
    async with api_of(**{"*": {"slots": 2, "run_s": 60}, "bob": {}}) as api:
        assert await refused(api, nodes=3) == (
            422,
            "over_quota",
            messages.MORE_THAN_YOUR_SLOTS.format(slots=3, quota=2),
        )
        assert (await refused(api, timeout_s=61))[1] == "over_quota"
        assert (await refused(api, "bob", nodes=3))[1] == "payload_missing", "bob has a quota without limits"
        job = await api.submit()
        assert api.context.store.job(job.id).spec.timeout_s == 60


def gpu_hours(store, owner, hours, days_ago):
    """Record that a user held a GPU."""
    ended_at = time.time() - days_ago * 86400
    use = UseRecord(0, owner, None, 1, None, "node-1", 1, 1, ended_at - hours * 3600, None)
    (kept,) = store.usage.change([], [use], use.began_at)
    store.usage.change([kept.id], [], ended_at)


@pytest.mark.parametrize(("days_ago", "waits"), [(29, True), (31, False)])
async def test_gpu_hours_of_the_last_30_days_count(api_of, tmp_path, days_ago, waits):
    async with api_of() as before:
        gpu_hours(before.context.store, "ada", 3, days_ago)
    async with api_of(ada={"gpu_hours": 2.5}) as api:
        job = await api.submit()
        if waits:
            await reason(api, job, messages.OVER_YOUR_HOURS.format(quota=2.5, used=3.0))
        else:
            assert await api.agents(job.id)


@pytest.mark.parametrize(
    ("quota", "told"),
    [
        ({"slots": 2}, messages.OVER_YOUR_SLOTS.format(quota=2, used=1)),
        ({"gpu_hours": 0.5}, messages.OVER_YOUR_HOURS.format(quota=0.5, used=3.0)),
        ({"slots": 3, "gpu_hours": 4}, None),
    ],
)
async def test_a_notebook_servers_gpus_are_within_the_quota_too(start_api, quota, told):
    async with start_api() as before:
        gpu_hours(before.context.store, "bob", 3, 1)
    async with start_api(servers=ServerLimits(max_gpus=2), quotas={"bob": quota}) as api:
        api.engine.kinds = ("gpu", "gpu")
        if "slots" in quota:
            await api.running("bob")
        answer = await api.ask("PUT", "api/servers/bob/-", "spawner-token", json={"gpus": 2})
        if told is None:
            assert answer.status_code == 200, answer.text
        else:
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["message"]) == (409, "over_quota", told)
        without = await api.ask("PUT", "api/servers/bob/plain", "spawner-token", json={})
        assert without.status_code == 200, without.text


async def shadow(api):
    answer = await api.ask("GET", "api/policy/what-if", "root-token")
    assert answer.status_code == 200, answer.text
    return WhatIfReport.model_validate_json(answer.content)


async def test_what_each_policy_would_have_done_is_told_beside_what_was(api):
    nothing = await shadow(api)
    assert (nothing.jobs, nothing.really, nothing.policies) == (0, None, ())
    job, agents, runs = await api.running(nodes=2)
    for agent, run in zip(agents, runs, strict=True):
        await agent.finish(run)
    await api.until(job.id, "succeeded")
    async with asyncio.timeout(WITHIN_S):
        while (answer := await shadow(api)).jobs == 0:
            await asyncio.sleep(0.01)
    assert answer.really.average_s > 0 and answer.placement == "pack" and answer.assumed
    rows = {row.policy: row for row in answer.policies}
    assert {"fifo", "backfill", "srtf", "elastic_fifo"} <= rows.keys()
    assert all(row.figures and row.figures.average_s > 0 and not row.trouble for row in rows.values()), rows
    assert (await api.ask("GET", "api/policy", "root-token")).json()["shadow"] == answer.model_dump(
        mode="json"
    )
    assert (await api.ask("GET", "api/policy", "ada-token")).json()["shadow"] is None


async def test_two_who_ask_at_once_share_the_work(api):
    what_if = api.context.what_if
    first, second = await asyncio.gather(what_if.report(), what_if.report())
    assert first is second


async def test_only_admins_see_what_everybodys_jobs_would_have_done(api):
    answer = await api.ask("GET", "api/policy/what-if", "ada-token")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "scope_missing")
