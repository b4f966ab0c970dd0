"""Runs by REST: found, labelled, and their metrics read back in full or as a picture."""

import json

import pytest

from minicluster.wire import CurveList, RunDetails, RunList, SeriesList

from ....patience import eventually

ORIGIN = {
    "source": "loss = train(model)",
    "line": "--nodes 1",
    "names": [{"name": "model", "type": "Net", "size_bytes": 1000}],
    "commit": {"commit": "0f1e2d", "branch": "main", "changed": 2},
    "tags": ["baseline", "night"],
}


def logged(step, rank=0, **values):
    record = {"kind": "log", "rank": rank, "at": 1000.0 + step, "step": step, "values": values}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


async def listed(api, token="ada-token", **query):
    answer = await api.ask("GET", "api/runs", token, params=query)
    assert answer.status_code == 200, answer.text
    return RunList.model_validate_json(answer.content)


async def curves(api, job, **query):
    answer = await api.ask("GET", f"api/runs/{job.id}/curves", params=query)
    assert answer.status_code == 200, answer.text
    return CurveList.model_validate_json(answer.content).curves


async def label(api, job_id, token="ada-token", **labels):
    return await api.ask("PUT", f"api/runs/{job_id}/labels", token, json=labels)


async def test_what_a_notebook_says_of_a_cell_is_remembered(api):
    job, _, _ = await api.running(run=ORIGIN, seed=3)
    answer = await api.ask("GET", f"api/runs/{job.id}")
    found = RunDetails.model_validate_json(answer.content)
    assert found.origin.model_dump(mode="json", exclude_defaults=True) == ORIGIN
    assert (found.run.tags, found.seed, found.attempts) == (("baseline", "night"), 3, 1)


async def test_records_become_curves_and_the_lists_last_values(api):
    job, (agent,), (run,) = await api.running()
    lines = b"".join(logged(step, loss=1.0 / (step + 1), acc=step / 10) for step in range(10))
    await agent.say(run, "records", 0, lines)
    loss, acc = await curves(api, job, name=["loss", "acc"])
    assert loss.step == tuple(range(10)) and acc.value[-1] == 0.9
    await eventually(lambda: api.context.store.runs.records([job.id])[job.id].metrics)
    (row,) = (await listed(api)).runs
    assert (row.metrics["acc"].value, row.metrics["loss"].low) == (0.9, 0.1)
    assert (await listed(api)).metrics == ("acc", "loss")


async def test_records_that_come_in_pieces_are_neither_lost_nor_doubled(api):
    job, (agent,), (run,) = await api.running()
    lines = b"".join(logged(step, loss=float(step)) for step in range(50))
    for first in range(0, len(lines), 333):
        await agent.say(run, "records", first, lines[first : first + 333])
        await agent.say(run, "records", first, lines[first : first + 333])
        await curves(api, job, name="loss")
    (loss,) = await curves(api, job, name="loss")
    assert loss.value == tuple(map(float, range(50)))


async def test_a_lost_file_is_made_again_from_the_records(api):
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "records", 0, logged(1, loss=0.5))
    assert len(await curves(api, job, name="loss")) == 1
    api.context.recorder.files.remove(job.id)
    (loss,) = await curves(api, job, name="loss")
    assert loss.value == (0.5,)


async def test_a_damaged_file_is_told_and_hurts_no_other_run(api):
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "records", 0, logged(1, loss=0.5))
    await curves(api, job, name="loss")
    api.context.recorder.files.path(job.id).write_bytes(b"no database" * 1000)
    answer = await api.ask("GET", f"api/runs/{job.id}/curves", params={"name": "loss"})
    assert answer.status_code == 503 and f"metrics of job {job.id}" in answer.json()["error"]["message"]
    assert (await listed(api)).total == 1


async def test_what_ranks_write_cannot_break_the_series(api):
    job, (agent,), (run,) = await api.running()
    nasty = b'{"kind":"log","rank":0,"at":1,"values":{"":1,"x":"NaN","%s":2}}\n' % (b"n" * 300)
    await agent.say(run, "records", 0, b'{"kind":"log"\n' + nasty + b'{"kind":"log","rank":"no"}\n')
    answer = await api.ask("GET", f"api/runs/{job.id}/series")
    (only,) = SeriesList.model_validate_json(answer.content).series
    assert (only.name, only.last, only.points) == ("x", None, 1)


async def test_several_runs_come_in_one_answer(api):
    jobs = []
    for value in (1.0, 2.0):
        job, (agent,), (run,) = await api.running(slots_per_node=1)
        await agent.say(run, "records", 0, logged(0, loss=value))
        await agent.finish(run)
        await api.until(job.id, "succeeded")
        jobs.append(job)
    query = {"run": [job.id for job in jobs], "name": "loss"}
    answer = await api.ask("GET", "api/run-curves", params=query)
    found = CurveList.model_validate_json(answer.content)
    assert [(curve.run, curve.value) for curve in found.curves] == [
        (jobs[0].id, (1.0,)),
        (jobs[1].id, (2.0,)),
    ]
    assert set(found.started_at) == {job.id for job in jobs}


async def test_runs_are_found_by_what_is_known_of_them(api):
    old = (await api.submit(name="resnet", run={"tags": ["night"]})).id
    new = (await api.submit(name="linear 100%")).id
    await label(api, new, note="too slow", favourite=True, tags=["day"])
    expected = {
        ("search", "RESN"): [old],
        ("search", "100%"): [new],
        ("search", "0_"): [],
        ("search", "slow"): [new],
        ("search", "nigh"): [old],
        ("tag", "day"): [new],
        ("favourite", "1"): [new],
        ("state", "failed"): [],
    }
    for query, ids in expected.items():
        assert [run.id for run in (await listed(api, **dict([query]))).runs] == ids, query
    by_name = await listed(api, sort="name", order="asc")
    assert [run.id for run in by_name.runs] == [new, old]
    page = await listed(api, limit=1, offset=1)
    assert ([run.id for run in page.runs], page.total) == ([old], 2)
    tags = (await api.ask("GET", "api/run-tags")).json()["tags"]
    assert tags == [{"tag": "day", "runs": 1}, {"tag": "night", "runs": 1}]


async def test_runs_sort_by_a_metric_with_those_without_it_last(api):
    ids = []
    for value in (2.0, 1.0, None):
        job, (agent,), (run,) = await api.running()
        if value is not None:
            await agent.say(run, "records", 0, logged(0, loss=value))
            await curves(api, job, name="loss")
        await agent.finish(run)
        await api.until(job.id, "succeeded")
        ids.append(job.id)
    for order, expected in (("asc", [ids[1], ids[0], ids[2]]), ("desc", [ids[0], ids[1], ids[2]])):
        assert [run.id for run in (await listed(api, sort="loss", order=order)).runs] == expected


async def test_others_see_nothing_of_a_run(api):
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "records", 0, logged(0, secret=1.0))
    for path in ("", "/series", "/curves?name=secret", "/points"):
        assert (await api.ask("GET", f"api/runs/{job.id}{path}", "bob-token")).status_code == 404
    assert (await api.ask("GET", f"api/run-curves?run={job.id}&name=secret", "bob-token")).status_code == 404
    assert (await label(api, job.id, "bob-token", note="mine")).status_code == 404
    assert (await listed(api, "bob-token")).total == 0
    assert (await api.ask("GET", "api/runs?owner=all", "bob-token")).status_code == 403


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("curves?axis=epoch", "axis"),
        ("curves?low=x", "low"),
        ("curves?high=NaN", "high"),
        ("curves?points=0", "points"),
        ("points?format=xls", "format"),
        ("curves?" + "name=a&" * 60, "name"),
    ],
)
async def test_wrong_questions_are_told_which(api, path, word):
    job = await api.submit()
    answer = await api.ask("GET", f"api/runs/{job.id}/{path}")
    assert answer.status_code == 422 and word in answer.json()["error"]["message"]


async def test_all_points_can_be_taken_along(api):
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "records", 0, logged(0, loss=1.5) + logged(1, loss=0.5))
    answer = await api.ask("GET", f"api/runs/{job.id}/points")
    assert answer.text.splitlines()[1:] == ["loss,0,0.0,1000.0,1.5", "loss,0,1.0,1001.0,0.5"]
    assert "attachment" in answer.headers["Content-Disposition"]
    answer = await api.ask("GET", f"api/runs/{job.id}/points?format=json&name=other")
    assert answer.json() == []


async def test_a_long_export_is_read_by_several_threads(api):
    job, (agent,), (run,) = await api.running()
    lines = b"".join(logged(step, loss=0.5) for step in range(2500))
    await agent.say(run, "records", 0, lines)
    assert len((await api.ask("GET", f"api/runs/{job.id}/points?format=json")).json()) == 2500


async def test_the_series_count_in_the_owners_quota(api):
    job, (agent,), (run,) = await api.running()
    before = api.context.store.storage.used("ada")
    await agent.say(run, "records", 0, b"".join(logged(step, loss=0.5) for step in range(2000)))
    await curves(api, job, name="loss")
    after = api.context.store.storage.used("ada")
    grown = sum(use.size_bytes for use in after.values()) - sum(use.size_bytes for use in before.values())
    assert grown > api.context.recorder.files.size_bytes(job.id) > 0


async def test_a_removed_job_has_no_series(api):
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "records", 0, logged(0, loss=0.5))
    await curves(api, job, name="loss")
    await agent.finish(run)
    await api.until(job.id, "succeeded")
    assert (await api.ask("DELETE", f"api/jobs/{job.id}/storage")).status_code in (200, 204)
    assert api.context.recorder.files.jobs() == []
    assert await curves(api, job, name="loss") == ()


async def test_new_values_are_told_to_the_owners_pages_only(api, listen):
    job, (agent,), (run,) = await api.running()
    ada, bob = api.client("ada-token"), api.client("bob-token")
    async with listen(ada, "api/events") as mine, listen(bob, "api/events") as others:
        await agent.say(run, "records", 0, logged(3, loss=0.5))
        name, data, _ = await mine.next()
        while name != "metrics":
            name, data, _ = await mine.next()
        assert (data["run"], data["metrics"]["loss"]["value"]) == (job.id, 0.5)
        other = await api.submit("bob")
        name, data, _ = await others.next()
        while name != "job":
            assert name != "metrics"
            name, data, _ = await others.next()
        assert data["id"] == other.id


async def profile(api, job, token="ada-token", **asked):
    return await api.ask("POST", f"api/runs/{job.id}/profile", token, json=asked)


async def test_ranks_of_a_running_job_are_asked_for_a_profile(api):
    job, agents, _ = await api.running(nodes=2)
    before = await agents[0].orders()
    assert before.profile is None
    asked = {"steps": 5, "ranks": [1]}
    assert (await profile(api, job, **asked)).status_code == 204
    for agent in agents:
        order = (await agent.orders(before.version)).profile
        assert (order.steps, order.ranks) == (5, (1,))
    assert (await profile(api, job, **asked)).status_code == 204
    assert (await agents[0].orders()).profile.id > order.id
    for body, expected in (
        ({"ranks": [2]}, (422, "unknown_rank")),
        ({"ranks": []}, (422, "invalid")),
        ({"steps": 0}, (422, "invalid")),
    ):
        refused = await profile(api, job, **body)
        assert (refused.status_code, refused.json()["error"]["code"]) == expected
    assert (await profile(api, job, "bob-token", **asked)).status_code == 404
    assert (await profile(api, job, "reader-token", **asked)).status_code == 403
    waiting = await api.submit(nodes=5)
    refused = await profile(api, waiting, **asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_running")
