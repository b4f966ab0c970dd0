"""The agents' API: repeated reports, long-polled orders, blobs, and the end of a token."""

import asyncio
import hashlib

import pytest

from minicluster.wire import JobState

from ....patience import eventually


async def test_the_orders_of_a_gang_fit_together(api):
    job = await api.submit(nodes=2, ranks_per_node=2, env={"EPOCHS": "3"})
    first, second = await api.agents(job.id)
    runs = await asyncio.gather(first.run_order(), second.run_order())
    assert [(run.group_rank, run.first_rank, run.world_size) for run in runs] == [(0, 0, 4), (1, 2, 4)]
    assert {(run.job_id, run.master_addr, run.master_port) for run in runs} == {(job.id, "127.0.0.1", 4000)}
    assert runs[0].env == {"EPOCHS": "3"}


async def test_orders_wait_until_they_change(start_api):
    async with start_api(orders_hold_s=0.3) as api:
        _, (agent,), _ = await api.running()
        orders = await agent.orders()
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await agent.orders(orders.version) == orders
        assert loop.time() - began >= 0.3
    async with start_api() as api:
        job, (agent,), _ = await api.running()
        orders = await agent.orders()
        waiting = asyncio.create_task(agent.orders(orders.version))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        await api.ask("POST", f"api/jobs/{job.id}/stop")
        assert (await waiting).stop == "interrupt"
        assert (await agent.orders("an old version")).stop == "interrupt"


async def test_output_sent_twice_is_kept_once(api):
    job, (agent,), (run,) = await api.running()
    assert (await agent.say(run, "rank-0", 0, b"abc")).sizes == {"rank-0": 3, "records": 0, "display-0": 0}
    assert (await agent.say(run, "rank-0", 0, b"abc")).sizes["rank-0"] == 3
    assert (await agent.say(run, "rank-0", 1, b"bcde")).sizes["rank-0"] == 5
    assert (await agent.say(run, "rank-0", 9, b"beyond")).sizes["rank-0"] == 5
    assert (await api.ask("GET", f"api/jobs/{job.id}/log")).content == b"abcde"


async def test_a_task_writes_only_its_own_streams(api):
    _, (first, second), runs = await api.running(nodes=2)
    for stream in ("rank-1", "agent-1"):
        with pytest.raises(AssertionError, match="not_your_stream"):
            await first.say(runs[0], stream, 0, b"forged")
    for stream in ("rank-0", "records"):
        with pytest.raises(AssertionError, match="not_your_stream"):
            await second.say(runs[1], stream, 0, b"forged")
    assert (await second.say(runs[1], "agent-1", 0, b"{}\n")).sizes == {
        "rank-1": 0,
        "agent-1": 3,
        "display-1": 0,
    }


async def test_output_of_another_attempt_is_not_kept(api):
    job, (agent,), (run,) = await api.running()
    other = run.model_copy(update={"attempt": run.attempt + 1})
    assert (await agent.say(other, "rank-0", 0, b"abc")).sizes == {}
    assert api.context.logs.sizes(job.id, 1) == {}


async def test_notes_of_an_agent_are_in_the_jobs_history_once(api):
    job, (agent,), (run,) = await api.running()
    for _ in range(2):
        await agent.report(attempt=run.attempt, notes=("rank 0 hung at its exit and was killed",))
    history = (await api.ask("GET", f"api/jobs/{job.id}/history")).json()["lines"]
    assert [line["text"] for line in history if line["kind"] == "note"] == [
        "rank 0 hung at its exit and was killed"
    ]
    later = await api.ask("GET", f"api/jobs/{job.id}/history", params={"after": history[-2]["id"]})
    assert later.json()["lines"] == history[-1:]


async def test_what_a_lost_task_waited_for_is_not_told_of_the_next_attempt(api):
    job, (agent,), (run,) = await api.running()
    note = "The cell is over on rank 0, which waits for its thread feeder."
    await agent.report(attempt=run.attempt, ending=(note,))
    assert (await api.ask("GET", f"api/jobs/{job.id}")).json()["note"] == note
    await api.engine.end(agent.task_id)
    await eventually(lambda: api.context.store.job(job.id).attempts == 2)
    (again,) = await api.agents(job.id)
    await again.start_ranks(await again.run_order())
    await api.until(job.id, "running")
    assert (await api.ask("GET", f"api/jobs/{job.id}")).json()["note"] == ""


async def test_a_payload_goes_to_its_own_task_only(api):
    _, (firsts,), _ = await api.running(payload=b"ada's cell")
    _, (seconds,), _ = await api.running("bob", payload=b"bob's cell")
    of_ada, of_bob = (hashlib.sha256(cell).hexdigest() for cell in (b"ada's cell", b"bob's cell"))
    assert (await firsts.http.get(f"api/tasks/blobs/{of_ada}")).content == b"ada's cell"
    assert (await seconds.http.get(f"api/tasks/blobs/{of_ada}")).status_code == 404
    assert (await firsts.http.get(f"api/tasks/blobs/{of_bob}")).status_code == 404


async def test_a_large_payload_goes_up_and_down_whole(api):
    payload = bytes(range(256)) * 40_000
    _, (agent,), (run,) = await api.running(payload=payload)
    assert (await agent.http.get(f"api/tasks/blobs/{run.payload_sha256}")).content == payload


async def test_an_upload_that_breaks_off_leaves_nothing(api):
    _, (agent,), _ = await api.running()
    sha256 = hashlib.sha256(b"x" * 2_000_000).hexdigest()

    async def half():
        yield b"x" * 1_000_000
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await agent.http.put(
            f"api/tasks/blobs/{sha256}", content=half(), headers={"Content-Length": "2000000"}
        )
    incoming = api.context.blobs.path(sha256).parent.parent / "incoming"
    await eventually(lambda: not list(incoming.glob("*")))
    assert api.context.blobs.size(sha256) is None


async def test_the_end_of_a_task_ends_its_token(api):
    job, (agent,), (run,) = await api.running()
    waiting = asyncio.create_task(
        agent.http.get("api/tasks/orders", params={"have": (await agent.orders()).version})
    )
    await api.engine.end(agent.task_id)
    answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "task_over")
    for method, path in (
        ("POST", "api/tasks/report"),
        ("GET", "api/tasks/orders"),
        ("GET", f"api/tasks/blobs/{run.payload_sha256}"),
        ("PUT", f"api/tasks/blobs/{run.payload_sha256}"),
    ):
        body = {"json": {}} if method == "POST" else {}
        assert (await agent.http.request(method, path, **body)).status_code == 410, path
    assert api.context.store.job(job.id).state is not JobState.RUNNING


async def test_an_agent_must_say_its_version(api):
    _, (agent,), _ = await api.running()
    del agent.http.headers["Minicluster-Wire"]
    assert (await agent.http.get("api/tasks/orders")).status_code == 426


async def test_unknown_fields_of_a_report_are_named(api):
    _, (agent,), _ = await api.running()
    answer = await agent.http.post("api/tasks/report", json={"ready": True, "mood": "good"})
    assert answer.status_code == 422
    assert "mood" in answer.json()["error"]["message"]


async def test_a_warm_agent_has_nothing_to_run_and_no_payload(api):
    job, (agent,), (run,) = await api.running()
    await agent.finish(run)
    await api.until(job.id, "succeeded")
    orders = await agent.orders()
    while orders.run is not None:
        orders = await agent.orders(orders.version)
    answer = await agent.http.get(f"api/tasks/blobs/{run.payload_sha256}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_attempt")
    again = await api.submit()
    assert (await agent.run_order()).job_id == again.id


async def test_a_database_that_fails_is_no_reason_to_end(api, monkeypatch):
    from minicluster_hub.store import StoreUnavailable

    _, (agent,), _ = await api.running()

    def broken(*_args):
        raise StoreUnavailable("disk full")

    monkeypatch.setattr(type(api.context.store), "task_by_token", broken)
    assert (await agent.http.get("api/tasks/orders")).status_code == 503
