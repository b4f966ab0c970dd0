"""Output files over the API: from an agent to the job's storage, to the owner, and removed."""

import asyncio
import hashlib
import os
import time
from urllib.parse import quote

import pytest

from minicluster.wire import LEFT, ArtifactList, ArtifactReport, BlobInfo, JobState, SmallFiles
from minicluster_hub.storage.blobs import artifact_file
from minicluster_hub.storage.retention import DAY_S, ArtifactRetention

from .test_full_disk import small_disk


@pytest.fixture
def blobs_disk(tmp_path):
    with small_disk(tmp_path / "blobs") as made:
        yield made


async def put(agent, data):
    sha256 = hashlib.sha256(data).hexdigest()
    return await agent.http.put(f"api/tasks/files/{sha256}", content=data), sha256


async def bring(agent, run, path, data):
    """Store a file as an agent does."""
    answer, sha256 = await put(agent, data)
    assert answer.status_code == 200, answer.text
    assert BlobInfo.model_validate_json(answer.content) == BlobInfo(sha256=sha256, size_bytes=len(data))
    await report_artifact(agent, run, path, sha256, len(data))


async def report_artifact(agent, run, path, sha256, size_bytes, **more):
    blob = BlobInfo(sha256=sha256, size_bytes=size_bytes)
    report = ArtifactReport.model_construct(path=path, part=run.group_rank, blob=blob)
    return await agent.report(attempt=run.attempt, artifacts=(report,), **more)


async def listed(api, job, token="ada-token"):
    answer = await api.ask("GET", f"api/jobs/{job.id}/files", token)
    assert answer.status_code == 200, answer.text
    return ArtifactList.model_validate_json(answer.content)


async def get(api, job, path, token="ada-token", headers=None, **query):
    url = f"api/jobs/{job.id}/files/{quote(path)}"
    return await api.ask("GET", url, token, params=query, headers=headers)


async def test_the_owner_sees_and_gets_what_agents_brought(api):
    job, agents, runs = await api.running(nodes=2)
    for agent, run in zip(agents, runs, strict=True):
        await bring(agent, run, "a folder/ünïcode ☃ 100%.txt", f"of task {run.group_rank}".encode())
    await bring(agents[1], runs[1], "empty", b"")
    shown = (await listed(api, job)).artifacts
    assert [(one.part, one.path, one.size_bytes) for one in shown] == [
        (0, "a folder/ünïcode ☃ 100%.txt", 9),
        (1, "a folder/ünïcode ☃ 100%.txt", 9),
        (1, "empty", 0),
    ]
    assert (await get(api, job, shown[0].path)).content == b"of task 0"
    assert (await get(api, job, shown[0].path, part=1)).content == b"of task 1"
    empty = await get(api, job, "empty")
    assert (empty.status_code, empty.content) == (200, b"")
    assert (await get(api, job, "empty", part=0)).status_code == 404
    assert (await get(api, job, "none")).json()["error"]["code"] == "unknown_file"
    file = artifact_file(api.context.store, api.context.blobs, job.id, "empty")
    assert file is not None and file.read_bytes() == b""
    assert artifact_file(api.context.store, api.context.blobs, job.id, "none") is None


async def test_nobody_else_gets_them_and_admins_only_see_them(api):
    job, (agent,), (run,) = await api.running()
    await bring(agent, run, "model", b"secret")
    assert (await get(api, job, "model", "bob-token")).status_code == 404
    assert (await api.ask("GET", f"api/jobs/{job.id}/files", "bob-token")).status_code == 404
    assert len((await listed(api, job, "root-token")).artifacts) == 1
    assert (await get(api, job, "model", "root-token")).status_code == 404
    _, (others,), _ = await api.running("bob")
    assert (await others.http.get(f"api/jobs/{job.id}/files/model")).status_code == 401


async def test_nothing_is_shown_as_a_page_of_the_hub(api):
    job, (agent,), (run,) = await api.running()
    await bring(agent, run, 'x/läuft "so".html', b"<script>alert(1)</script>")
    headers = (await get(api, job, 'x/läuft "so".html')).headers
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["Content-Disposition"] == (
        "attachment; filename=\"l_uft _so_.html\"; filename*=UTF-8''l%C3%A4uft%20%22so%22.html"
    )


async def test_a_download_is_resumed(api):
    job, (agent,), (run,) = await api.running()
    data = bytes(range(256)) * 4000
    await bring(agent, run, "big", data)
    tag = (await get(api, job, "big")).headers["ETag"]
    rest = await get(api, job, "big", headers={"Range": "bytes=1000000-", "If-Range": tag})
    assert (rest.status_code, rest.content) == (206, data[1_000_000:])
    assert rest.headers["Content-Range"] == f"bytes 1000000-{len(data) - 1}/{len(data)}"
    for header, part in {
        "bytes=5-9": data[5:10],
        "bytes=-3": data[-3:],
        "bytes=9-99999999": data[9:],
    }.items():
        answer = await get(api, job, "big", headers={"Range": header})
        assert (answer.status_code, answer.content) == (206, part)
    for header in ("bytes=-", "bytes=1-2,5-6", "lines=1-2"):
        assert (await get(api, job, "big", headers={"Range": header})).content == data
    changed = await get(api, job, "big", headers={"Range": "bytes=5-9", "If-Range": '"another"'})
    assert (changed.status_code, changed.content) == (200, data)
    for none in (f"bytes={len(data)}-", "bytes=9-5"):
        beyond = await get(api, job, "big", headers={"Range": none})
        assert (beyond.status_code, beyond.json()["error"]["code"]) == (416, "range")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a/", ".", "", "x" * 1025, "a\0b"])
async def test_a_path_that_leads_elsewhere_is_refused(api, path):
    _, (agent,), (run,) = await api.running()
    with pytest.raises(AssertionError, match="artifacts"):
        await report_artifact(agent, run, path, "a" * 64, 1)


async def test_small_files_come_together(blobs_disk, api):
    job, (agent,), (run,) = await api.running()
    small = SmallFiles.model_construct(contents=(b"", b"one", b"\0two", b"one"))
    blobs_disk.fill()
    answer = await agent.http.post("api/tasks/files", content=small.model_dump_json())
    assert answer.status_code == 507
    assert "the job's files wait on the nodes" in (await api.ask("GET", f"api/jobs/{job.id}")).json()["note"]
    blobs_disk.empty()
    answer = await agent.http.post("api/tasks/files", content=small.model_dump_json())
    assert answer.status_code == 204, answer.text
    for data in small.contents:
        await report_artifact(agent, run, f"file {data!r}", hashlib.sha256(data).hexdigest(), len(data))
        assert (await get(api, job, f"file {data!r}")).content == data
    assert not (await api.ask("GET", f"api/jobs/{job.id}")).json().get("note")


async def test_a_large_file_that_is_on_its_way_is_told(api):
    job, (agent,), _ = await api.running()
    notes = []

    async def pieces():
        for _ in range(33):
            yield bytes(1 << 20)
        notes.append((await api.ask("GET", f"api/jobs/{job.id}")).json().get("note"))

    sha256 = hashlib.sha256(bytes(33 << 20)).hexdigest()
    headers = {"Content-Length": str(33 << 20)}
    answer = await agent.http.put(f"api/tasks/files/{sha256}", content=pieces(), headers=headers)
    assert answer.status_code == 200, answer.text
    assert notes == ["Files of its output folder are being uploaded."]
    assert not (await api.ask("GET", f"api/jobs/{job.id}")).json().get("note")


async def test_what_did_not_come_is_told_beside_the_rest(api):
    job, (agent,), (run,) = await api.running()
    notes = (f"{LEFT} on node-1: a (no room).", "something else")
    await agent.report(attempt=run.attempt, notes=notes)
    assert (await listed(api, job)).left == notes[:1]


async def test_an_attempt_more_takes_the_place_of_what_was_there(api):
    job, (agent,), (run,) = await api.running()
    await bring(agent, run, "model", b"old")
    await bring(agent, run, "model", b"new")
    await bring(agent, run, "model", b"new")
    assert (await get(api, job, "model")).content == b"new"
    assert len((await listed(api, job)).artifacts) == 1


async def test_a_task_without_an_attempt_stores_nothing(api):
    job, (agent,), (run,) = await api.running()
    await agent.finish(run)
    await api.until(job.id, JobState.SUCCEEDED)
    assert (await put(agent, b"late"))[0].status_code == 409


async def test_a_full_disk_is_told_and_the_agent_tries_again(blobs_disk, api):
    job, (agent,), (run,) = await api.running()
    blobs_disk.fill()
    answer, _ = await put(agent, b"x" * 100_000)
    assert answer.status_code == 507
    shown = (await api.ask("GET", f"api/jobs/{job.id}")).json()
    assert "the job's files wait on the nodes" in shown["note"]
    blobs_disk.empty()
    await bring(agent, run, "big", b"x" * 100_000)
    assert not (await api.ask("GET", f"api/jobs/{job.id}")).json().get("note")
    await agent.finish(run)
    await api.until(job.id, "succeeded")


async def test_files_are_removed_when_their_time_is_over(start_api):
    async with start_api(artifacts_keep_days=30.0) as api:
        jobs = []
        for _ in range(3):
            job, (agent,), (run,) = await api.running()
            await bring(agent, run, "model", f"model {job.id}".encode())
            await agent.finish(run)
            await api.until(job.id, JobState.SUCCEEDED)
            jobs.append(job)
        ended_at = api.context.store.job(jobs[0].id).ended_at
        assert (await listed(api, jobs[0])).keep_until == ended_at + 30 * DAY_S
        parts = api.context.store, api.context.blobs, 30.0
        for days, left in ((29.9, 3), (30.1, 0)):
            at = time.time() + days * DAY_S
            await ArtifactRetention(*parts, lambda at=at: at, api.context.log).sweep()
            assert sum([len((await listed(api, job)).artifacts) for job in jobs]) == left
        assert (await get(api, jobs[0], "model")).status_code == 404
        assert api.context.blobs.outputs() == []


async def test_what_was_never_told_of_is_removed_and_the_rest_stays(api):
    job, (agent,), (run,) = await api.running()
    await bring(agent, run, "model", b"told")
    _, untold = await put(agent, b"untold")
    files = api.context.blobs.output_of(job.id)
    retention = ArtifactRetention(api.context.store, api.context.blobs, 0.0, time.time, api.context.log)
    await retention.remove_unreported()
    assert files.size(untold) == 6, "it may be told of in a moment"
    old = time.time() - 2 * 3600
    for path in files._root.glob("??/*"):
        os.utime(path, (old, old))
    await retention.remove_unreported()
    assert files.size(untold) is None
    assert (await get(api, job, "model")).content == b"told"


async def test_a_service_that_comes_back_leaves_agents_the_time_to_tell_of_their_files(api):
    job, (agent,), (run,) = await api.running()
    _, untold = await put(agent, b"untold")
    files = api.context.blobs.output_of(job.id)
    snapshots = api.context.blobs.of_job(job.id)
    snapshots.keep(b"snapshot")
    old = time.time() - 2 * 3600
    for path in (*files._root.glob("??/*"), *snapshots._root.glob("??/*")):
        os.utime(path, (old, old))
    looked = asyncio.Event()

    class Looks(ArtifactRetention):
        async def sweep(self):
            looked.set()
            return await super().sweep()

    parts = api.context.store, api.context.blobs, 1.0, time.time, api.context.log
    running = asyncio.create_task(Looks(*parts).run())
    await looked.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert files.size(untold) == 6
    assert (await report_artifact(agent, run, "model", untold, 6)).missing == ()
    assert (await get(api, job, "model")).content == b"untold"
    await ArtifactRetention(*parts).remove_unreported()
    assert files.size(untold) == 6
    assert snapshots.size(hashlib.sha256(b"snapshot").hexdigest()) is None


async def test_a_file_that_is_not_here_is_asked_for_and_not_listed(api):
    job, (agent,), (run,) = await api.running()
    sha256 = hashlib.sha256(b"model").hexdigest()
    assert (await report_artifact(agent, run, "model", sha256, 5)).missing == (sha256,)
    assert (await listed(api, job)).artifacts == ()
    await bring(agent, run, "model", b"model")
    assert (await get(api, job, "model")).content == b"model"


async def test_a_service_that_was_killed_in_the_middle_of_removing_goes_on(start_api):
    async with start_api(artifacts_keep_days=1.0) as api:
        job, (agent,), (run,) = await api.running()
        await bring(agent, run, "model", b"model")
        await agent.finish(run)
        await api.until(job.id, JobState.SUCCEEDED)
        api.context.blobs.remove_output(job.id)  # Killed here.
        assert (await get(api, job, "model")).status_code == 404
        later = time.time() + 2 * DAY_S
        await ArtifactRetention(
            api.context.store, api.context.blobs, 1.0, lambda: later, api.context.log
        ).sweep()
        assert (await listed(api, job)).artifacts == ()
