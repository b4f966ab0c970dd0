"""Knowing a hash gives no access: a client may name only the hashes of data that its owner sent."""

import asyncio
import hashlib

from minicluster.wire import (
    ArtifactReport,
    BlobInfo,
    DataFile,
    DataManifest,
    SnapshotReport,
    TaskReport,
)
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.store.tables.main import ATTEMPTS, JOBS

SECRET = b"ada's own bytes"
INFO = BlobInfo(sha256=hashlib.sha256(SECRET).hexdigest(), size_bytes=len(SECRET))
NOT_THERE = BlobInfo(sha256="c" * 64, size_bytes=len(SECRET))


async def adas_result(api):
    """Run a job of Ada's that stores a result."""
    job, (agent,), (run,) = await api.running(payload=b"ada's cell")
    put = await agent.http.put(f"api/tasks/blobs/{INFO.sha256}", content=SECRET)
    assert put.status_code == 200, put.text
    await agent.finish(run, result=INFO)
    await api.until(job.id, "succeeded")
    return job


async def post(agent, run, **more):
    """Return the answer to a report of the attempt."""
    message = TaskReport(ready=True, store_port=4000, attempt=run.attempt, **more)
    return await agent.http.post("api/tasks/report", content=message.model_dump_json())


def code(answer):
    return answer.status_code, answer.json()["error"]["code"]


async def test_a_task_cannot_report_anothers_result_as_its_own(api):
    await adas_result(api)
    job, (agent,), (run,) = await api.running("bob", payload=b"bob's cell")
    known, unknown = (
        await post(agent, run, result=INFO),
        await post(agent, run, result=NOT_THERE),
    )
    assert code(known) == code(unknown) == (409, "result_missing")
    assert known.text.replace(INFO.sha256, "") == unknown.text.replace(NOT_THERE.sha256, "")
    await agent.finish(run)
    await api.until(job.id, "succeeded")
    assert (await api.ask("GET", f"api/jobs/{job.id}/result", "bob-token")).status_code == 404


async def test_a_result_has_the_size_that_came(api):
    _, (agent,), (run,) = await api.running()
    await agent.http.put(f"api/tasks/blobs/{INFO.sha256}", content=SECRET)
    for size_bytes in (0, 2**50):
        wrong = BlobInfo(sha256=INFO.sha256, size_bytes=size_bytes)
        assert code(await post(agent, run, result=wrong)) == (409, "result_missing")


async def test_a_result_that_a_former_release_took_from_a_hash_is_not_served(api):
    await adas_result(api)
    job, (agent,), (run,) = await api.running("bob", payload=b"bob's cell")
    await agent.finish(run)
    await api.until(job.id, "succeeded")
    values = {"result_sha256": INFO.sha256, "result_size_bytes": INFO.size_bytes}
    with api.context.store._database.write() as connection:
        for table, column in ((JOBS, JOBS.c.id), (ATTEMPTS, ATTEMPTS.c.job_id)):
            connection.execute(table.update().where(column == job.id).values(**values))
    assert code(await api.ask("GET", f"api/jobs/{job.id}/result", "bob-token")) == (404, "no_result")


async def test_a_job_cannot_take_along_anothers_cell_or_files(api):
    await adas_result(api)
    mine = hashlib.sha256(b"bob's cell").hexdigest()
    await api.ask("PUT", f"api/blobs/{mine}", "bob-token", content=b"bob's cell")
    for number, spec in enumerate(
        (
            {"payload_sha256": INFO.sha256},
            {"payload_sha256": mine, "bundle_sha256": INFO.sha256},
            {"payload_sha256": mine, "parts": [INFO.sha256]},
        )
    ):
        body = {"idempotency_key": f"stealing-{number}", "spec": {**spec, "nodes": {"min": 1, "max": 1}}}
        answer = await api.ask("POST", "api/jobs", "bob-token", json=body)
        assert code(answer) == (409, "payload_missing")


async def test_nobody_learns_that_another_has_a_blob(api):
    await adas_result(api)
    both = {"sha256": [INFO.sha256, NOT_THERE.sha256]}
    assert (await api.ask("POST", "api/missing-blobs", "bob-token", json=both)).json() == both
    for one in (INFO, NOT_THERE):
        assert (await api.ask("HEAD", f"api/blobs/{one.sha256}", "bob-token")).status_code == 404


async def test_nor_by_how_long_the_answer_takes(api, monkeypatch):
    """The service reads from disk only the user's own blobs, even an empty one."""
    await adas_result(api)
    empty, asked = hashlib.sha256(b"").hexdigest(), []
    await api.ask("PUT", f"api/blobs/{empty}", "bob-token", content=b"")
    size = BlobFiles.size
    monkeypatch.setattr(BlobFiles, "size", lambda files, sha256: asked.append(sha256) or size(files, sha256))
    for sha256, status in ((INFO.sha256, 404), (NOT_THERE.sha256, 404), (empty, 200)):
        assert (await api.ask("HEAD", f"api/blobs/{sha256}", "bob-token")).status_code == status
    assert asked == [empty]


async def test_a_task_reads_no_blob_but_its_own_jobs(api):
    await adas_result(api)
    _, (agent,), _ = await api.running("bob", payload=b"bob's cell")
    for kind in ("blobs", "snapshots"):
        assert code(await agent.http.get(f"api/tasks/{kind}/{INFO.sha256}")) == (404, "unknown_blob")


async def test_files_and_snapshots_of_another_job_are_not_a_tasks_own(api):
    """Not even of the same owner: each job has its own folders."""
    _, (agent,), _ = await api.running()
    assert (await agent.http.put(f"api/tasks/files/{INFO.sha256}", content=SECRET)).status_code == 200
    assert (await agent.http.put(f"api/tasks/snapshots/{INFO.sha256}", content=SECRET)).status_code == 200
    job, (thief,), (theirs,) = await api.running("bob", payload=b"bob's cell")
    file = ArtifactReport(path="stolen", part=0, blob=INFO)
    snapshot = SnapshotReport(step=1, attempt=theirs.attempt, blob=INFO)
    answer = await post(thief, theirs, artifacts=(file,), snapshots=(snapshot,))
    assert answer.json()["missing"] == [INFO.sha256]
    assert (await api.ask("GET", f"api/jobs/{job.id}/files", "bob-token")).json()["artifacts"] == []
    assert (await api.ask("GET", f"api/jobs/{job.id}/snapshots", "bob-token")).json()["snapshots"] == []
    for path in ("files/stolen", "snapshots/1"):
        assert (await api.ask("GET", f"api/jobs/{job.id}/{path}", "bob-token")).status_code == 404


async def test_a_part_of_another_jobs_cell_is_not_sent(api):
    await adas_result(api)
    job, (agent,), (run,) = await api.running("bob", payload=b"bob's cell")
    await agent.finish(run)
    answer = await api.ask("GET", f"api/jobs/{job.id}/cell", "bob-token", params={"part": INFO.sha256})
    assert code(answer) == (404, "unknown_blob")


async def put_piece(api, data, token):
    sha256 = hashlib.sha256(data).hexdigest()
    answer = await api.ask("PUT", f"api/data/pieces/{sha256}", token, content=data)
    assert answer.status_code == 200, answer.text
    return BlobInfo(sha256=sha256, size_bytes=len(data))


async def test_a_data_set_stands_on_its_owners_pieces_alone(api):
    piece = await put_piece(api, SECRET, "ada-token")
    manifest = DataManifest(files=(DataFile("a", len(SECRET)),), pieces=(piece,)).model_dump_json().encode()
    theirs = await put_piece(api, manifest, "ada-token")
    asked = {"manifest_sha256": theirs.sha256}
    known = await api.ask("PUT", "api/data/sets/stolen", "bob-token", json=asked)
    asked = {"manifest_sha256": "d" * 64}
    unknown = await api.ask("PUT", "api/data/sets/stolen", "bob-token", json=asked)
    assert code(known) == code(unknown) == (409, "pieces_missing")
    assert known.text == unknown.text
    mine = await put_piece(api, manifest, "bob-token")  # an attacker has the manifest, but not its pieces
    answer = await api.ask("PUT", "api/data/sets/stolen", "bob-token", json={"manifest_sha256": mine.sha256})
    assert code(answer) == (409, "pieces_missing")
    pieces = {"pieces": [piece.model_dump()]}
    assert (await api.ask("POST", "api/data/missing", "bob-token", json=pieces)).json() == pieces


async def test_a_job_reads_no_version_that_its_line_does_not_name(api):
    """The service fills in which version a job reads, and ignores the client's value."""
    piece = await put_piece(api, SECRET, "ada-token")
    manifest = DataManifest(files=(DataFile("a", len(SECRET)),), pieces=(piece,)).model_dump_json().encode()
    theirs = await put_piece(api, manifest, "ada-token")
    await api.ask("PUT", "api/data/sets/pets", "ada-token", json={"manifest_sha256": theirs.sha256})
    payload = hashlib.sha256(b"bob's cell").hexdigest()
    await api.ask("PUT", f"api/blobs/{payload}", "bob-token", content=b"bob's cell")
    for name in ("pets", "ada/pets"):
        use = {"name": name, "owner": "ada", "manifest_sha256": theirs.sha256, "size_bytes": len(SECRET)}
        spec = {"payload_sha256": payload, "nodes": {"min": 1, "max": 1}, "data": [use]}
        body = {"idempotency_key": f"reads-of-{len(name)}", "spec": spec}
        answer = await api.ask("POST", "api/jobs", "bob-token", json=body)
        assert code(answer) == (422, "unknown_data_set")


async def test_an_image_is_published_from_ones_own_job_alone(api):
    job = await adas_result(api)
    body = {"job_id": job.id, "name": "stolen"}
    theirs, nobody = await asyncio.gather(
        api.ask("POST", "api/images", "bob-token", json=body),
        api.ask("POST", "api/images", "bob-token", json={**body, "job_id": 4711}),
    )
    assert code(theirs) == code(nobody)
