"""Why a user's job waits, the user's share, and jobs ahead: one answer without details of others' jobs."""

import asyncio
import json

import pytest

from .... import messages

SECRET = "hunter2-of-bob"


@pytest.fixture
async def api_of(start_api):
    """A function that starts services with the test's quotas."""
    return lambda **quotas: start_api(quotas=quotas)


async def queue(api, owner="ada"):
    answer = await api.ask("GET", "api/queue/me", f"{owner}-token")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def queue_when(api, ready, owner="ada"):
    """Return the answer once the condition holds."""
    async with asyncio.timeout(10):
        while not ready(answer := await queue(api, owner)):
            await asyncio.sleep(0.01)
    return answer


async def test_one_answer_tells_why_and_ones_share_and_who_is_before(api):
    await api.running("bob", nodes=2, timeout_s=3600)
    await api.submit("root", nodes=3, timeout_s=7200)
    job = await api.submit(nodes=2, name="mine", timeout_s=60)
    answer = await queue_when(api, lambda answer: answer["jobs"] and answer["jobs"][0]["latest_start_at"])
    (mine,) = answer["jobs"]
    assert (mine["id"], mine["name"], mine["position"]) == (job.id, "mine", 2)
    assert (
        mine["reason"].startswith("needs 2 nodes")
        and f"1 is free {messages.UNTIL_JOB_ENDS.format(job=1)}" in mine["reason"]
    )
    assert answer["now"] < mine["expected_start_at"] < mine["latest_start_at"]
    assert mine["latest_start_at"] == pytest.approx(answer["now"] + 3600 + 7200, abs=120)
    assert [(one["owner"], one["slots"], one["why"]) for one in answer["before"]] == [
        ("root", 3, messages.CAME_EARLIER)
    ]
    assert [(one["owner"], one["slots"]) for one in answer["running"]] == [("bob", 2)]
    share = answer["share"]
    assert (share["slots"], share["fair_slots"], share["cluster_slots"]) == (0, 1, 3)
    assert share["used_slot_hours"] == 0 and share["others_slot_hours"] > 0
    assert answer["policy"] == "backfill"


async def test_nothing_of_others_work_is_in_it(api):
    planted = {"name": SECRET, "env": {"TOKEN": SECRET}, "image": None, "payload": SECRET.encode()}
    await api.running("bob", nodes=3, **planted)
    await api.submit("bob", nodes=1, key=SECRET, **planted)
    await api.submit(nodes=1)
    answer = await queue_when(api, lambda answer: answer["jobs"] and answer["before"])
    assert [one["owner"] for one in answer["before"]] == ["bob"]
    assert SECRET not in json.dumps(answer)
    assert SECRET in json.dumps(await queue(api, "bob")), "one's own names are shown"
    assert {key for one in (*answer["before"], *answer["running"]) for key in one} == {
        "owner",
        "slots",
        "since",
        "why",
    }


async def test_quotas_are_told_with_what_is_used(api_of):
    async with api_of(ada={"slots": 2, "jobs": 3, "run_s": 60, "gpu_hours": 5}) as api:
        await api.running(nodes=1)
        job = await api.submit(nodes=2)
        answer = await queue_when(api, lambda answer: answer["jobs"])
        assert answer["jobs"][0]["id"] == job.id
        assert answer["jobs"][0]["reason"].endswith("quota of 2 slots at once: 1 in use")
        quotas = {one["kind"]: (one["limit"], one["used"]) for one in answer["share"]["quotas"]}
        assert quotas == {"slots": (2, 1), "jobs": (3, 1), "gpu_hours": (5, 0), "run_s": (60, None)}


async def test_who_waits_for_nothing_still_sees_the_share(api):
    answer = await queue(api)
    assert (answer["jobs"], answer["before"], answer["share"]["fair_slots"]) == ([], [], 3)


async def test_it_needs_a_token_that_may_read(api):
    assert (await api.ask("GET", "api/queue/me", "submitter-token")).status_code == 403


async def starts(api, *nodes, owner="ada", **more):
    specs = [
        {"payload_sha256": "0" * 64, "nodes": {"min": count, "max": count} if count else None, **more}
        for count in nodes
    ]
    answer = await api.ask("POST", "api/starts", f"{owner}-token", json={"specs": specs})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_job_that_is_not_submitted_is_told_when_it_would_start(api):
    free = await starts(api, 1, None)
    assert [(one["at_once"], one["nodes"], one["refused"]) for one in free["starts"]] == [
        (True, 1, ""),
        (True, 3, ""),
    ]
    assert sum(node["up"] for node in free["nodes"]) == 3
    await api.running("bob", nodes=2, timeout_s=3600)
    held = await starts(api, 1, 2, timeout_s=60)
    one, two = held["starts"]
    assert one["at_once"] and not two["at_once"]
    assert two["reason"].startswith("needs 2 nodes")
    assert held["now"] < two["expected_start_at"] <= held["now"] + 3600 + 60
    assert (await queue(api))["jobs"] == [], "nothing was queued"


async def test_a_job_that_would_be_refused_is_told_why(api_of):
    async with api_of(ada={"slots": 1}) as api:
        fits, too_many, nowhere = (await starts(api, 1, 2, 7))["starts"]
        assert fits["at_once"]
        assert "your quota is 1" in too_many["refused"] and too_many["hint"]
        assert "needs 7 nodes" in nowhere["refused"]


async def test_a_quota_in_use_makes_a_job_wait(api_of):
    async with api_of(ada={"slots": 1}) as api:
        await api.running(nodes=1)
        (found,) = (await starts(api, 1))["starts"]
        assert not found["at_once"] and "quota of 1 slots" in found["reason"]
