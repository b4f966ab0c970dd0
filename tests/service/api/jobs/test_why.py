"""Why a job is stuck: on its owner's request, and unasked when its ranks are stalled."""

import asyncio

import pytest
from traitlets.config import Config

from minicluster.wire import RankStack, StackFrame, StackStatus
from minicluster_hub.app import MiniclusterHub
from minicluster_hub.control import stall_watch

from .... import messages
from ....patience import WITHIN_S

C10D = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"


def stack(rank, *, waits):
    number = 14 if waits else 9
    line = StackFrame(file="Cell In[1]", line=number, function="<module>", cell=True, text="a line")
    inside = (StackFrame(file=C10D, line=1, function="all_reduce"),) if waits else ()
    return RankStack(rank=rank, sight=StackStatus.SEEN, quiet_s=30, frames=(*inside, line))


async def answer_dump_requests(agent, run, *stacks, stalled=()):
    """Answer each stack dump request of a task as an agent does."""
    orders = await agent.orders()
    while True:
        if orders.look:
            await agent.report(attempt=run.attempt, look=orders.look, stacks=stacks, quiet=stalled)
        orders = await agent.orders(orders.version)


async def history(api, job, kind):
    lines = (await api.ask("GET", f"api/jobs/{job.id}/history")).json()["lines"]
    return [line["text"] for line in lines if line["kind"] == kind]


async def why(api, job, token="ada-token"):
    answer = await api.ask("GET", f"api/jobs/{job.id}/why", token)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_running_job_is_asked_where_its_ranks_are(api):
    job, agents, runs = await api.running(nodes=2)
    async with asyncio.TaskGroup() as looking:
        works = [
            looking.create_task(answer_dump_requests(agent, run, stack(number, waits=number == 0)))
            for number, (agent, run) in enumerate(zip(agents, runs, strict=True))
        ]
        answers = await asyncio.gather(why(api, job), why(api, job))
        again = await why(api, job)
        for work in works:
            work.cancel()
    for answer in (*answers, again):
        assert answer["sentence"].startswith(
            "Rank 1 never reached the all_reduce of cell line 14; rank 0 waits there."
        )
        assert [rank["rank"] for rank in answer["ranks"]] == [0, 1]


async def test_an_agent_that_does_not_answer_is_told_and_not_waited_for(api):
    job, agents, runs = await api.running(nodes=2)
    answering = asyncio.create_task(answer_dump_requests(agents[0], runs[0], stack(0, waits=True)))
    answer = await why(api, job)
    answering.cancel()
    assert [rank["sight"] for rank in answer["ranks"]] == ["seen", "away"]
    assert answer["sentence"].startswith(f"{messages.NODE_AWAY.format(ranks='rank 1')}; rank 0 waits")


async def test_a_task_says_nothing_of_ranks_that_are_not_its_own(api):
    job, agents, runs = await api.running(nodes=2)
    forged = asyncio.create_task(
        answer_dump_requests(agents[0], runs[0], stack(0, waits=True), stack(1, waits=True), stalled=(1,))
    )
    answer = await why(api, job)
    forged.cancel()
    assert [rank["sight"] for rank in answer["ranks"]] == ["seen", "away"]
    assert not api.context.status_cache.stack_dumps.is_stalled(job.id)


async def test_a_job_whose_ranks_are_stalled_says_why_once_for_each_stall(api):
    job, (agent,), (run,) = await api.running()
    answering = asyncio.create_task(answer_dump_requests(agent, run, stack(0, waits=False), stalled=(0,)))
    for stalls in (1, 2):
        async with asyncio.timeout(WITHIN_S):
            while len(await history(api, job, "stalled")) < stalls:
                await agent.report(attempt=run.attempt, quiet=(0,))
        for _ in range(20):
            await agent.report(attempt=run.attempt, quiet=(0,))
        assert len(await history(api, job, "stalled")) == stalls
        noted = (await api.ask("GET", f"api/jobs/{job.id}")).json()["note"]
        assert "Rank 0 does nothing" in noted
        assert noted == (await history(api, job, "stalled"))[-1]
        async with asyncio.timeout(WITHIN_S):
            while (await api.ask("GET", f"api/jobs/{job.id}")).json()["note"]:
                await agent.report(attempt=run.attempt, quiet=())
    answering.cancel()


async def test_an_agent_that_calls_its_ranks_stalled_again_and_again_fills_no_history(api, monkeypatch):
    monkeypatch.setattr(stall_watch, "STALLS_OF_JOB", 3)
    job, (agent,), (run,) = await api.running()
    answering = asyncio.create_task(answer_dump_requests(agent, run, stack(0, waits=False), stalled=(0,)))
    for _ in range(6):
        for stalled in ((0,), ()):
            async with asyncio.timeout(WITHIN_S):
                while bool((await api.ask("GET", f"api/jobs/{job.id}")).json()["note"]) != bool(stalled):
                    await agent.report(attempt=run.attempt, quiet=stalled)
    answering.cancel()
    assert len(await history(api, job, "stalled")) == 3


async def test_the_stall_comes_with_the_jobs_events(api, listen):
    job, (agent,), (run,) = await api.running()
    async with listen(api.client("ada-token"), f"api/jobs/{job.id}/events") as events:
        answering = asyncio.create_task(answer_dump_requests(agent, run, stack(0, waits=False), stalled=(0,)))
        await agent.report(attempt=run.attempt, quiet=(0,))
        name, event, _ = await events.next()
        while name != "job" or not event["note"]:
            name, event, _ = await events.next()
        answering.cancel()
    assert "cell line 9" in event["note"]


async def test_what_a_job_asks_for_goes_before_the_clusters_own(api):
    _, _, (plain,) = await api.running()
    _, _, (asked,) = await api.running("bob", quiet_after_s=7)
    assert (plain.quiet_after_s, asked.quiet_after_s) == (120, 7)
    body = {"idempotency_key": "k" * 8, "spec": {"payload_sha256": "ab" * 32, "quiet_after_s": -1}}
    refused = await api.ask("POST", "api/jobs", json=body)
    assert refused.status_code == 422


@pytest.mark.parametrize("name", ["stall_timeout_s", "quiet_after_s"])
def test_the_clusters_setting_has_its_former_name_too(name):
    settings = MiniclusterHub(config=Config({"MiniclusterHub": {name: 7}}))
    assert (MiniclusterHub().limits.stall_timeout_s, settings.limits.stall_timeout_s) == (120, 7)


async def test_jobs_that_do_not_run_say_what_is_known(api):
    job, (agent,), (run,) = await api.running()
    waiting = await api.submit("bob", nodes=3)
    assert (await why(api, waiting, "bob-token"))["sentence"].startswith(f"Job {waiting.id} is queued: ")
    await agent.finish(run)
    await api.until(job.id, "succeeded")
    assert (await why(api, job))["sentence"] == f"Job {job.id} has succeeded."
    assert (await api.ask("GET", f"api/jobs/{job.id}/why", "bob-token")).status_code == 404
