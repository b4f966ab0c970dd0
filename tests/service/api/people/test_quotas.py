"""Quotas and shares that an administrator changes while the service runs, for users and groups."""

import re

import pytest

from .... import messages
from .test_entitlements import reason, refused

NUMBER = re.compile(r"\d+")


async def over_quota(api, owner="ada", **spec):
    """Submit a job that the quota refuses; return the slots that it needs and those of the quota."""
    status, code, message = await refused(api, owner, **spec)
    assert (status, code) == (422, "over_quota"), message
    needed, quota = NUMBER.findall(message)
    return int(needed), int(quota)


async def choose(api, token="root-token", **choice):
    return await api.ask("PUT", "api/quotas", token, json=choice)


async def test_a_change_is_active_at_once_and_the_reasons_change_with_it(start_api):
    async with start_api(quotas={"ada": {"slots": 2}}) as api:
        data = (await api.ask("GET", "api/quotas", "root-token")).json()
        assert data["in_force"] == {
            "allowances": {"quotas": {"ada": {"slots": 2.0}}, "shares": {}},
            "by": "",
            "since": 0.0,
        }
        assert [kind["name"] for kind in data["kinds"]][:2] == ["slots", "jobs"]
        await api.running(nodes=1)
        job = await api.submit(nodes=2)
        await reason(api, job, messages.OVER_YOUR_SLOTS.format(quota=2, used=1))
        assert (await choose(api, quotas={"ada": {"jobs": 1}})).status_code == 200
        await reason(api, job, messages.OVER_YOUR_JOBS.format(quota=1, running=1))
        assert (await choose(api, quotas={})).status_code == 200
        assert await api.agents(job.id)


async def test_it_is_kept_over_a_restart_and_goes_before_the_settings(start_api):
    async with start_api() as api:
        answer = await choose(api, quotas={"*": {"slots": 1}}, shares={"ada": 2})
        assert answer.status_code == 200, answer.text
    async with start_api(quotas={"*": {"slots": 5}}) as api:
        assert await over_quota(api, nodes=2) == (2, 1)
        active = (await api.ask("GET", "api/quotas", "root-token")).json()["in_force"]
        assert active["by"] == "root" and active["allowances"]["shares"] == {"ada": 2.0}


async def test_a_groups_members_have_its_quota_and_its_weight(api):
    for name, groups in (("ada", ["vision"]), ("bob", ["vision", "speech"])):
        api.hub.models[f"{name}-token"]["groups"] = groups
    quotas = {"group:vision": {"slots": 1}, "group:speech": {"slots": 2}, "*": {"slots": 0}}
    assert (await choose(api, quotas=quotas, shares={"group:vision": 3, "ada": 2})).status_code == 200
    assert await over_quota(api, nodes=2) == (2, 1)
    assert (await refused(api, "bob", nodes=2))[1] == "payload_missing", "the most generous of bob's groups"
    assert await over_quota(api, "root", nodes=1) == (1, 0)
    accounting = api.context.accounting
    weights = {name: usage.weight for name, usage in accounting.usage(1e10).items()}
    assert (weights["ada"], weights["bob"]) == (2, 3)


async def test_cores_and_memory_are_counted_by_the_slots_that_bring_them(api):
    assert (await choose(api, quotas={"ada": {"cpus": 23}, "bob": {"memory_gb": 32}})).status_code == 200
    assert await over_quota(api, nodes=3) == (3, 2)
    assert await over_quota(api, "bob", nodes=2) == (2, 1)
    await api.running(nodes=1)
    job = await api.submit(nodes=2)
    await reason(api, job, messages.OVER_YOUR_SLOTS.format(quota=2, used=1))
    data = (await api.ask("GET", "api/queue/me")).json()["share"]["quotas"]
    assert {one["kind"]: (one["used"], one["limit"]) for one in data} == {"slots": (1, 2), "cpus": (8, 23)}


async def test_members_share_what_their_group_has_together(api):
    for name in ("ada", "bob"):
        api.hub.models[f"{name}-token"]["groups"] = ["vision"]
    assert (await choose(api, quotas={"group:vision": {"slots_together": 2}, "bob": {}})).status_code == 200
    await api.running("ada")
    job = await api.submit("bob", nodes=2)
    await reason(api, job, messages.OVER_THE_GROUPS_SLOTS.format(group="vision", quota=2, used=1))
    assert await over_quota(api, "bob", nodes=3) == (3, 2)


async def test_more_open_jobs_than_the_quota_are_refused(api):
    assert (await choose(api, quotas={"ada": {"open_jobs": 1}})).status_code == 200
    await api.submit()
    assert await refused(api) == (422, "over_quota", "you have 1 jobs waiting or running; your quota is 1")


@pytest.mark.parametrize(
    ("choice", "code", "message"),
    [
        ({"quotas": {"ada": {"slot": 3}}}, "bad_quota", "the quota of 'ada' has 'slot'; there are: slots, "),
        (
            {"quotas": {"ada": {"jobs": -1}}},
            "bad_quota",
            f"has jobs = -1.0; it {messages.A_NUMBER_AT_LEAST_0}",
        ),
        ({"quotas": {"ada": {"slots": "Infinity"}}}, "bad_quota", "the quota of 'ada' has slots = inf"),
        ({"quotas": {"ada": {"slots_together": 1}}}, "bad_quota", "which only groups have"),
        ({"quotas": {"group:": {"slots": 1}}}, "bad_quota", "names no group"),
        ({"shares": {"ada": 0}}, "bad_quota", "the share of 'ada' is 0.0; it must be at least 0.001"),
        ({"shares": {"*": 2}}, "bad_quota", "a share belongs to a user or a group"),
        ({"quotas": {"ada": {"slots": "many"}}}, "invalid", "slots"),
        ({"quota": {}}, "unknown_field", "quota"),
    ],
)
async def test_bad_values_are_refused_by_name_and_change_nothing(api, choice, code, message):
    answer = await choose(api, **choice)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, code)
    assert message in error["message"]
    assert (await api.ask("GET", "api/quotas", "root-token")).json()["in_force"]["by"] == ""


async def test_users_neither_see_nor_change_it(api):
    for answer in (await choose(api, "ada-token", quotas={}), await api.ask("GET", "api/quotas")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "scope_missing")
