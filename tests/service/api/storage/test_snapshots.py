"""Snapshots over the API: from an agent to storage, to the next attempt's agent, to the owner."""

import hashlib

from minicluster.wire import BlobInfo, SnapshotList, SnapshotReport


async def bring(agent, run, step, data, keep=2):
    """Store a snapshot as an agent does; return its report."""
    sha256 = hashlib.sha256(data).hexdigest()
    answer = await agent.http.put(f"api/tasks/snapshots/{sha256}", content=data)
    assert answer.status_code == 200, answer.text
    blob = BlobInfo.model_validate_json(answer.content)
    return await report_snapshot(agent, run, step, blob, keep)


async def report_snapshot(agent, run, step, blob, keep=2):
    answer = SnapshotReport(step=step, attempt=run.attempt, blob=blob, keep=keep)
    await agent.report(attempt=run.attempt, snapshots=(answer,))
    return answer


async def listed(api, job, token="ada-token"):
    answer = await api.ask("GET", f"api/jobs/{job.id}/snapshots", token)
    return SnapshotList.model_validate_json(answer.content).snapshots


def files(api, job):
    folder = api.context.blobs.of_job(job.id)
    return {path.name for path in folder._root.glob("??/*")}


async def test_the_owner_sees_and_gets_what_an_agent_brought(api):
    job, (agent,), (run,) = await api.running()
    await bring(agent, run, 10, b"ten")
    await bring(agent, run, 20, b"twenty")
    assert [(one.step, one.attempt, one.size_bytes) for one in await listed(api, job)] == [
        (20, 1, 6),
        (10, 1, 3),
    ]
    answer = await api.ask("GET", f"api/jobs/{job.id}/snapshots/20")
    assert (answer.status_code, answer.content) == (200, b"twenty")
    assert f"job-{job.id}-step-20.tar" in answer.headers["Content-Disposition"]
    assert (await api.ask("GET", f"api/jobs/{job.id}/snapshots/15")).status_code == 404
    for path in (f"api/jobs/{job.id}/snapshots", f"api/jobs/{job.id}/snapshots/20"):
        assert (await api.ask("GET", path, "bob-token")).status_code == 404


async def test_older_files_go_when_there_are_more_than_the_job_wants(api):
    job, (agent,), (run,) = await api.running()
    for step in (10, 20, 30):
        newest = await bring(agent, run, step, f"step {step}".encode())
    assert [one.step for one in await listed(api, job)] == [30, 20]
    assert len(files(api, job)) == 2
    await bring(agent, run, 40, b"step 40", keep=1)
    assert [one.step for one in await listed(api, job)] == [40]
    assert newest.blob.sha256 not in files(api, job)


async def test_a_snapshot_whose_bytes_did_not_come_is_not_listed(api):
    job, (agent,), (run,) = await api.running()
    await report_snapshot(agent, run, 10, BlobInfo(sha256="a" * 64, size_bytes=3))
    assert await listed(api, job) == ()
    damaged = await agent.http.put(f"api/tasks/snapshots/{'b' * 64}", content=b"other bytes")
    assert damaged.status_code == 422
    assert files(api, job) == set()


async def test_a_task_gets_only_what_its_attempt_goes_on_from(api):
    _, (agent,), (run,) = await api.running()
    snapshot = await bring(agent, run, 10, b"ten")
    # The snapshot is of this same attempt, so there is no order to resume from it.
    assert (await agent.run_order()).snapshot is None
    assert (await agent.http.get(f"api/tasks/snapshots/{snapshot.blob.sha256}")).status_code == 404


async def test_a_task_without_an_attempt_stores_nothing(api):
    job, (agent,), (run,) = await api.running()
    await agent.finish(run)
    orders = await agent.orders()
    while orders.run is not None:
        orders = await agent.orders(orders.version)
    answer = await agent.http.put(f"api/tasks/snapshots/{hashlib.sha256(b'x').hexdigest()}", content=b"x")
    assert answer.status_code == 409, answer.text
    assert files(api, job) == set()


async def test_a_snapshot_in_parts_is_there_when_all_nodes_have_brought_theirs(api):
    job, agents, runs = await api.running(nodes=2)
    for part, (agent, run) in enumerate(zip(agents, runs, strict=True)):
        assert await listed(api, job) == ()
        data = f"part {part}".encode()
        sha256 = hashlib.sha256(data).hexdigest()
        assert (await agent.http.put(f"api/tasks/snapshots/{sha256}", content=data)).status_code == 200
        blob = BlobInfo(sha256=sha256, size_bytes=len(data))
        report = SnapshotReport(step=10, attempt=run.attempt, blob=blob, part=part, parts=2)
        await agent.report(attempt=run.attempt, snapshots=(report,))
    (found,) = await listed(api, job)
    assert (found.step, found.parts, found.size_bytes) == (10, 2, 12)
    for part in (0, 1):
        answer = await api.ask("GET", f"api/jobs/{job.id}/snapshots/10?part={part}")
        assert answer.content == f"part {part}".encode()
        assert f"step-10-part-{part}.tar" in answer.headers["Content-Disposition"]
    assert (await api.ask("GET", f"api/jobs/{job.id}/snapshots/10?part=2")).status_code == 404
