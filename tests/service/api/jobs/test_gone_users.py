"""Expired tokens and deleted users: a job continues without the token that submitted it."""


async def test_a_job_outlives_its_token_and_waits_for_the_next_one(api, monkeypatch):
    monkeypatch.setattr(api.context.hub_auth, "cache_max_age", 0)
    job, (agent,), (run,) = await api.running()
    token = api.hub.models.pop("ada-token")
    api.context.hub_auth.cache.clear()
    refused = await api.ask("GET", f"api/jobs/{job.id}")
    assert refused.status_code in (401, 403)
    assert refused.json()["error"]["message"]
    assert (await agent.say(run, "rank-0", 0, b"goes on\n")).sizes["rank-0"] == 8
    await agent.finish(run)
    await api.until(job.id, "succeeded")

    api.hub.models["adas-next-token"] = token
    log = await api.ask("GET", f"api/jobs/{job.id}/log", token="adas-next-token")
    assert log.content == b"goes on\n"


async def test_the_job_of_a_deleted_user_ends_and_frees_its_slots(api):
    job, (agent,), (run,) = await api.running(nodes=1)
    api.hub.models = {name: user for name, user in api.hub.models.items() if user["name"] != "ada"}
    api.context.hub_auth.cache.clear()
    await agent.finish(run)
    await api.until(job.id, "succeeded")
    assert not [lease for lease in api.context.store.open_state().leases if lease.job_id == job.id]
    everywhere = await api.submit("bob", nodes=3)
    await api.agents(everywhere.id)


async def test_an_admin_stops_the_job_of_a_deleted_user(api):
    job, (agent,), (run,) = await api.running()
    api.hub.models = {name: user for name, user in api.hub.models.items() if user["name"] != "ada"}
    api.context.hub_auth.cache.clear()
    stopped = await api.ask("POST", f"api/jobs/{job.id}/stop", token="root-token")
    assert stopped.json()["state"] == "stopping"
    await agent.finish(run)
    await api.until(job.id, "stopped")


async def test_output_over_the_limit_is_said_beside_the_job(api):
    api.context.logs.limit_bytes = 100
    job, (agent,), (run,) = await api.running()
    assert (await agent.say(run, "rank-0", 0, b"x" * 1_000)).sizes["rank-0"] == 1_000
    shown = (await api.ask("GET", f"api/jobs/{job.id}")).json()
    assert "rank-0 printed more than 100 bytes" in shown["note"]
    assert (await api.ask("GET", f"api/jobs/{job.id}/log")).content == b"x" * 100
    await agent.finish(run)
    await api.until(job.id, "succeeded")
