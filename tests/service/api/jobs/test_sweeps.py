"""The API of sweeps, and what the ranks of their trials ask, with simulated agents."""

import asyncio
import hashlib
import subprocess
import sys
from uuid import uuid4

from minicluster.wire import JobState
from minicluster.wire.sweeps.sweeps import SweepDetails, SweepState, TrialState

from ....patience import eventually

X = {"kind": "number", "low": 0.0, "high": 1.0}


async def submit(api, owner="ada", key=None, nodes=(1, 1), **settings):
    payload = b"a cell"
    sha256, token = hashlib.sha256(payload).hexdigest(), f"{owner}-token"
    await api.ask("PUT", f"api/blobs/{sha256}", token, content=payload)
    spec = {"payload_sha256": sha256, "name": "fit", "nodes": {"min": nodes[0], "max": nodes[1]}}
    body = {
        "idempotency_key": key or uuid4().hex,
        "spec": spec,
        "settings": {"metric": "loss", "seed": 1, "trials": 4, **settings},
    }
    return await api.ask("POST", "api/sweeps", token, json=body)


async def begun(api, **settings):
    """Submit a sweep; return its id, its first trial's agent and run order, once the ranks run."""
    sweep_id = (await submit(api, **settings)).json()["id"]
    trial = await eventually(lambda: next(iter(api.context.store.sweeps.trials(sweep_id)), None))
    agents = await api.agents(trial.job_id)
    runs = await asyncio.gather(*(agent.run_order() for agent in agents))
    for agent, run in zip(agents, runs, strict=True):
        await agent.start_ranks(run)
    await api.until(trial.job_id, "running")
    return sweep_id, agents, runs


async def suggest(agent, run, name="x", among=X):
    body = {"attempt": run.attempt, "name": name, "among": among}
    return await agent.http.post("api/tasks/suggest", json=body)


async def details(api, sweep_id, token="ada-token", **query):
    answer = await api.ask("GET", f"api/sweeps/{sweep_id}", token, params=query)
    assert answer.status_code == 200, answer.text
    return SweepDetails.model_validate_json(answer.content)


def log(step, loss, rank=0):
    return f'{{"kind":"log","rank":{rank},"at":1.0,"step":{step},"values":{{"loss":{loss}}}}}\n'.encode()


async def test_a_sweep_is_its_owners_and_the_same_key_is_the_same_sweep(api):
    first = await submit(api, key="key-00001")
    again = await submit(api, key="key-00001")
    assert (first.status_code, again.status_code) == (201, 200)
    sweep_id = first.json()["id"]
    assert again.json()["id"] == sweep_id
    for token, status in (("bob-token", 404), ("root-token", 200), ("ada-token", 200)):
        for path in ("", "/importance"):
            assert (await api.ask("GET", f"api/sweeps/{sweep_id}{path}", token)).status_code == status
    assert (await api.ask("POST", f"api/sweeps/{sweep_id}/stop", "bob-token")).status_code == 404
    assert (await api.ask("GET", "api/sweeps", "bob-token")).json() == {"sweeps": []}
    assert len((await api.ask("GET", "api/sweeps")).json()["sweeps"]) == 1


async def test_trials_are_submitted_as_slots_are_free_and_one_waits(api):
    sweep_id = (await submit(api, trials=40)).json()["id"]
    slots = sum(len(node.slots) for node in api.context.status_cache.nodes().nodes if node.up)
    await eventually(lambda: len(api.context.store.sweeps.trials(sweep_id)) == slots + 1)
    trial = api.context.store.sweeps.trials(sweep_id)[0]
    agents = await api.agents(trial.job_id)
    await agents[0].start_ranks(await agents[0].run_order())
    await asyncio.sleep(0.3)
    assert len(api.context.store.sweeps.trials(sweep_id)) == slots + 1
    job = api.context.store.job(trial.job_id)
    assert (job.spec.name, job.spec.trial.sweep, job.spec.trial.number) == ("fit #0", sweep_id, 0)
    run = (await api.ask("GET", f"api/runs/{trial.job_id}")).json()["run"]
    assert (run["name"], run["sweep"]) == ("fit #0", sweep_id)


async def test_all_ranks_get_what_was_drawn_once(api):
    sweep_id, agents, runs = await begun(api, nodes=(2, 2))
    answers = [await suggest(agent, run) for agent, run in zip(agents, runs, strict=True)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    found = await details(api, sweep_id)
    assert found.trials[0].params == {"x": answers[0].json()["value"]}
    changed = await suggest(agents[0], runs[0], "k", {"kind": "choices", "choices": ["a", "b"]})
    refused = await suggest(agents[1], runs[1], "k", {"kind": "choices", "choices": ["a"]})
    assert (changed.status_code, refused.status_code) == (200, 422)
    assert "choices differ" in refused.json()["error"]["message"]


async def draw_ahead(agent, run):
    answer = await agent.http.post("api/tasks/draw-ahead", json={"attempt": run.attempt})
    assert answer.status_code == 200, answer.text
    return {one["name"]: one for one in answer.json()["drawn"]}


async def test_what_is_drawn_ahead_is_the_same_for_all_and_shown_once_it_is_asked_for(api):
    sweep_id, (agent,), (run,) = await begun(api, trials=3, at_once=1)
    assert await draw_ahead(agent, run) == {}
    for name in ("x", "y"):
        await suggest(agent, run, name)
    await agent.say(run, "records", 0, log(0, 0.5))
    await agent.finish(run)
    trial = await eventually(lambda: (*api.context.store.sweeps.trials(sweep_id)[1:], None)[0])
    (agent,) = await api.agents(trial.job_id)
    run = await agent.run_order()
    drawn = await draw_ahead(agent, run)
    assert list(drawn) == ["x", "y"] and drawn == await draw_ahead(agent, run)
    assert not (await details(api, sweep_id)).trials[1].params
    api.context.sweeps.searches.forget_all()  # As a restart does.
    api.context.sweeps._asked.clear()
    assert (await suggest(agent, run)).json()["value"] == drawn["x"]["value"]
    other = await suggest(agent, run, "y", {"kind": "number", "low": 5.0, "high": 6.0})
    assert 5 <= other.json()["value"] <= 6
    assert list((await details(api, sweep_id)).trials[1].params) == ["x", "y"]


async def test_only_trials_get_parameters_and_users_make_none(api):
    _, (agent,), (run,) = await api.running()
    assert (await suggest(agent, run)).json()["error"]["code"] == "no_trial"
    ahead = await agent.http.post("api/tasks/draw-ahead", json={"attempt": run.attempt})
    assert ahead.json()["error"]["code"] == "no_trial"
    sha256 = hashlib.sha256(b"a cell").hexdigest()
    trial = {"sweep": 1, "number": 1, "metric": "loss"}
    body = {"idempotency_key": uuid4().hex, "spec": {"payload_sha256": sha256, "trial": trial}}
    answer = await api.ask("POST", "api/jobs", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")


async def test_an_old_attempt_gets_no_parameters(api):
    _, (agent,), (run,) = await begun(api)
    old = run.model_copy(update={"attempt": run.attempt + 1})
    assert (await suggest(agent, old)).json()["error"]["code"] == "no_attempt"


async def test_a_trials_value_is_the_last_that_its_lowest_rank_logged(api):
    sweep_id, (agent,), (run,) = await begun(api, trials=1)
    await suggest(agent, run)
    await agent.say(run, "records", 0, log(0, 0.9) + log(0, 7.0, rank=1) + log(1, 0.5))
    await agent.finish(run)
    await eventually(lambda: api.context.store.sweeps.sweep(sweep_id).state.over)
    found = await details(api, sweep_id)
    assert (found.sweep.state, found.sweep.best.value, found.sweep.best.step) == (SweepState.DONE, 0.5, 1.0)


async def test_a_trial_that_logs_nothing_fails(api):
    sweep_id, (agent,), (run,) = await begun(api, trials=1)
    await agent.finish(run)
    await eventually(lambda: api.context.store.sweeps.sweep(sweep_id).state.over)
    found = await details(api, sweep_id)
    assert (found.sweep.state, found.trials[0].state) == (SweepState.FAILED, TrialState.FAILED)
    assert "never logged loss" in found.trials[0].error


async def test_a_pruned_trial_is_told_to_leave_and_says_where_it_did(api):
    sweep_id, (agent,), (run,) = await begun(api, trials=1)
    trial = api.context.store.sweeps.trials(sweep_id)[0]
    early = await agent.http.post("api/tasks/leave", json={"attempt": run.attempt, "call": 1})
    assert early.status_code == 204
    assert api.context.store.sweeps.trials(sweep_id)[0].left_at is None, "nobody told it to leave"
    await agent.say(run, "records", 0, log(0, 0.9))
    orders = await agent.orders()
    assert not orders.leave
    api.context.store.sweeps.prune(trial, 1.0)
    await agent.say(run, "records", len(log(0, 0.9)), log(1, 0.8))
    assert (await agent.orders(orders.version)).leave
    await agent.http.post("api/tasks/leave", json={"attempt": run.attempt, "call": 3, "step": 2.0})
    await agent.finish(run)
    await eventually(lambda: api.context.store.sweeps.sweep(sweep_id).state.over)
    assert (await details(api, sweep_id)).trials[0].state is TrialState.PRUNED


async def test_a_poll_waits_until_the_sweep_changes(api):
    sweep_id, (agent,), (run,) = await begun(api, trials=1)
    known = await details(api, sweep_id)
    waiting = asyncio.create_task(details(api, sweep_id, have=known.version))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    await suggest(agent, run)
    assert (await waiting).trials[0].params.keys() == {"x"}


async def test_a_stop_ends_the_trials_under_way_and_no_more_begin(api):
    sweep_id, (agent,), (run,) = await begun(api, trials=40, at_once=1)
    answer = await api.ask("POST", f"api/sweeps/{sweep_id}/stop")
    assert answer.json()["state"] == "stopping"
    await eventually(lambda: api.context.store.job(run.job_id).state is JobState.STOPPING)
    await agent.finish(run)
    await eventually(lambda: api.context.store.sweeps.sweep(sweep_id).state is SweepState.STOPPED)
    assert [trial.state for trial in api.context.store.sweeps.trials(sweep_id)] == [TrialState.STOPPED]
    again = await api.ask("POST", f"api/sweeps/{sweep_id}/stop")
    assert (again.status_code, again.json()["state"]) == (200, "stopped")


async def test_a_sweep_without_room_for_jobs_says_why(start_api):
    async with start_api(quotas={"ada": {"open_jobs": 1}}) as api:
        sweep_id, *_ = await begun(api, trials=5)
        await eventually(lambda: "the limit is 1" in api.context.sweeps.note(sweep_id))
        assert "the limit is 1" in (await details(api, sweep_id)).sweep.note


async def test_a_restarted_service_goes_on_with_a_sweep(start_api):
    async with start_api() as api:
        sweep_id, (agent,), (run,) = await begun(api, trials=2, at_once=1)
        drawn = (await suggest(agent, run)).json()
        await agent.say(run, "records", 0, log(0, 0.9))
        await eventually(lambda: api.context.store.sweeps.values(sweep_id))
    async with start_api() as api:
        found = await details(api, sweep_id)
        assert found.trials[0].params == {"x": drawn["value"]}
        assert (found.sweep.state, found.trials[0].value) == (SweepState.RUNNING, 0.9)


def test_a_service_without_sweeps_imports_no_optuna():
    source = "import sys, minicluster_hub.wiring, minicluster_hub.api.sweeps; print('optuna' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", source], text=True).strip() == "False"
