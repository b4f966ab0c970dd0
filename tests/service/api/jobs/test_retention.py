"""Large data of old jobs is removed, with a message for later requests; nothing else is."""

import asyncio
import hashlib
import os
import time

import pytest

from minicluster.wire import JobState
from minicluster_hub.storage.retention import DAY_S, JobRetention

from ..storage import test_snapshots as snapshots

KEEP_DAYS = 30.0


def removal(api, days=0.0, keep_days=KEEP_DAYS):
    """Return the remover, so many days from now."""
    context, at = api.context, time.time() + days * DAY_S
    return JobRetention(
        context.store,
        context.blobs,
        context.logs,
        context.recorder.files,
        keep_days,
        lambda: at,
        context.log,
    )


async def remove_due(api, days=0.0, keep_days=KEEP_DAYS):
    """Remove everything that is due so many days from now."""
    age(api, days)
    removing = removal(api, days, keep_days)
    await removing.remove_old()
    await removing.remove_left()
    await removing.remove_unnamed()


def age(api, days):
    """Set the blobs' files to the age that they will have then."""
    for path in api.context.blobs._root.glob("??/*"):
        at = path.stat().st_mtime - days * DAY_S
        os.utime(path, (at, at))


def blobs_of(api):
    return {path.name for path in api.context.blobs._root.glob("??/*")}


def sha(data):
    return hashlib.sha256(data).hexdigest()


async def put(api, data, owner="ada"):
    answer = await api.ask("PUT", f"api/blobs/{sha(data)}", f"{owner}-token", content=data)
    assert answer.status_code == 200, answer.text
    return sha(data)


async def ended(api, owner="ada", payload=b"a cell", result=b"a result", bundle=b"files"):
    """Return a job that ended, with all kinds of stored data."""
    more = {"payload": payload, "bundle_sha256": await put(api, bundle, owner)}
    more["parts"] = [await put(api, bundle + b" and a part", owner)]
    job, (agent,), (run,) = await api.running(owner, **more)
    await agent.say(run, "rank-0", 0, b"printed")
    await snapshots.bring(agent, run, 10, b"ten")
    kept = await agent.http.put(f"api/tasks/blobs/{sha(result)}", content=result)
    await agent.finish(run, result=kept.json())
    await api.until(job.id, JobState.SUCCEEDED)
    return job


@pytest.mark.parametrize(
    ("days", "keep_days", "goes"), [(29.9, 30.0, False), (30.1, 30.0, True), (999, 0.0, False)]
)
async def test_what_a_job_left_goes_when_its_time_is_over(api, days, keep_days, goes):
    job = await ended(api)
    left = {sha(b"a cell"), sha(b"files"), sha(b"files and a part"), sha(b"a result")}
    assert blobs_of(api) == left
    await remove_due(api, days, keep_days)
    assert blobs_of(api) == (set() if goes else left)
    assert api.context.logs.jobs() == api.context.blobs.jobs() == ([] if goes else [job.id])
    assert len(await snapshots.listed(api, job)) == (0 if goes else 1)
    for path, what in {"result": "the result", "log": "the output", "snapshots/10": "the snapshot"}.items():
        answer = await api.ask("GET", f"api/jobs/{job.id}/{path}")
        assert answer.status_code == (410 if goes else 200), answer.text
        if goes:
            note = f"{what} of job {job.id} was removed 30 days after the job's end"
            assert answer.json()["error"]["message"] == note
    assert (await api.ask("GET", f"api/jobs/{job.id}")).json()["state"] == "succeeded"
    history = (await api.ask("GET", f"api/jobs/{job.id}/history")).json()["lines"]
    assert ("removed" in [line["kind"] for line in history]) is goes
    await remove_due(api, days, keep_days)
    assert api.context.store.last_event_id(job.id) == history[-1]["id"]


async def test_what_another_job_stands_on_stays(api):
    await ended(api, payload=b"the same cell")
    going_on, _, _ = await api.running("bob", payload=b"the same cell")
    await remove_due(api, 31)
    assert blobs_of(api) == {sha(b"the same cell")}
    assert api.context.store.job(going_on.id).removed_at is None


async def test_what_a_job_of_another_release_takes_along_stays(api):
    job, _, _ = await api.running()
    with api.context.store._database.write() as connection:
        connection.exec_driver_sql("DELETE FROM job_blobs")
    await remove_due(api, 31)
    assert blobs_of(api) == {sha(b"a cell")}
    assert api.context.store.job(job.id).state is JobState.RUNNING


async def test_what_was_sent_and_never_named_goes_after_a_day(api):
    loose = await put(api, b"loose")
    await remove_due(api, 0.9)
    assert blobs_of(api) == {loose}
    await remove_due(api, 1.1)
    assert blobs_of(api) == set()
    assert (await api.ask("HEAD", f"api/blobs/{loose}")).status_code == 404


@pytest.mark.parametrize("asks", ["HEAD", "PUT"])
async def test_who_was_told_that_a_blob_is_here_can_name_it(api, asks):
    data = b"an old cell"
    await put(api, data)
    with api.context.store._database.write() as connection:
        connection.exec_driver_sql("UPDATE blobs SET asked_at = 1.0, created_at = 1.0")
    age(api, 2)
    content = data if asks == "PUT" else None
    assert (await api.ask(asks, f"api/blobs/{sha(data)}", content=content)).status_code == 200
    await remove_due(api)
    spec = {"payload_sha256": sha(data), "nodes": {"min": 1, "max": 1}}
    body = {"idempotency_key": "key-00001", "spec": spec}
    answer = await api.ask("POST", "api/jobs", json=body)
    assert answer.status_code == 201, answer.text
    assert api.context.blobs.size(sha(data)) == len(data)


async def test_parts_that_are_here_stay_until_the_job_names_them(api):
    blobs = [await put(api, data) for data in (b"a cell", b"a part")]
    spec = {"payload_sha256": blobs[0], "parts": [blobs[1]], "nodes": {"min": 1, "max": 1}}

    def grow_old():
        with api.context.store._database.write() as connection:
            connection.exec_driver_sql("UPDATE blobs SET asked_at = 1.0, created_at = 1.0")
        age(api, 2)

    grow_old()
    answer = await api.ask("POST", "api/missing-blobs", json={"sha256": blobs})
    assert answer.json()["sha256"] == []
    await remove_due(api)
    assert blobs_of(api) == set(blobs)
    grow_old()
    refused = {"idempotency_key": "key-00001", "spec": {**spec, "bundle_sha256": sha(b"to be sent")}}
    assert (await api.ask("POST", "api/jobs", json=refused)).status_code == 409
    await remove_due(api)
    assert (await api.ask("POST", "api/jobs", json={**refused, "spec": spec})).status_code == 201
    assert blobs_of(api) == set(blobs)


async def test_a_blob_that_comes_again_while_it_is_removed_stays(api):
    data = await put(api, b"again")
    age(api, 2)
    api.context.store.blobs.drop_loose(time.time() + DAY_S)
    await put(api, b"again")
    api.context.blobs.remove_old([data], DAY_S)
    assert blobs_of(api) == {data}


async def test_a_service_that_was_killed_between_rows_and_files_goes_on(api):
    job = await ended(api)
    api.context.store.old_jobs.forget([job.id], time.time())
    assert api.context.store.blobs.drop_loose(time.time() + DAY_S) == 4
    assert api.context.logs.jobs() == [job.id] and len(blobs_of(api)) == 4
    await remove_due(api, 2)
    assert api.context.logs.jobs() == api.context.blobs.jobs() == []
    assert blobs_of(api) == set()


async def test_agents_that_waited_for_the_service_tell_of_their_results_first(api):
    _, (agent,), _ = await api.running()
    await agent.http.put(f"api/tasks/blobs/{sha(b'a result')}", content=b"a result")
    age(api, 2)
    looked = asyncio.Event()

    class Looks(JobRetention):
        async def remove_left(self):
            await super().remove_left()
            asyncio.get_running_loop().call_soon(looked.set)

    context, at = api.context, time.time() + 2 * DAY_S
    files = context.store, context.blobs, context.logs, context.recorder.files
    looks = Looks(*files, KEEP_DAYS, lambda: at, context.log)
    running = asyncio.create_task(looks.run())
    await looked.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not context.store.blobs.lacks("ada", [sha(b"a result")])
    await looks.remove_unnamed()
    assert context.store.blobs.lacks("ada", [sha(b"a result")])
