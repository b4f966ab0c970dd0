"""A user or job that writes without end is stopped by its own quota, and others continue."""

import asyncio
import hashlib
import os
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from minicluster.runtime.node.cache import Cache, NoRoom
from minicluster.wire import (
    ArtifactReport,
    BlobInfo,
    DataOrder,
    ErrorKind,
    JobError,
    RankStack,
    SnapshotReport,
    StackFrame,
    StackStatus,
    StorageKind,
    StreamChunk,
    TaskReport,
)
from minicluster_hub.storage.disk_space import DiskSpace
from minicluster_hub.store.jobs import job_rows

from ...patience import eventually
from ...service.api.client import PREFIX
from ...service.api.storage.test_full_disk import small_disk

KB = 1000
MB = 1_000_000


def quota(api, size_bytes):
    """Set the storage quota of each user."""
    api.context.storage.limit_of = lambda owner: size_bytes


def on_disk(api):
    """Return the bytes of all files on disk, at least 4 KB for each.

    A job's row counts like a file; rows are small in these tests.
    """
    rows = len(api.context.store.jobs(None, limit=100))
    roots = (api.context.blobs._root, api.context.data_sets.files._root, api.context.logs._root)
    found = [path.stat() for root in roots for path in root.rglob("*") if path.is_file()]
    # Output that is not stored leaves a hole.
    return rows * 4096 + sum(max(4096, min(one.st_size, one.st_blocks * 512)) for one in found)


def used(api, owner="ada"):
    return sum(use.size_bytes for use in api.context.store.storage.used(owner).values())


def a_blob(size_bytes):
    data = os.urandom(size_bytes)
    return hashlib.sha256(data).hexdigest(), data


async def chunked(data):
    for start in range(0, len(data), 10_000):
        yield data[start : start + 10_000]


async def put(client, path, data, *, sha256="", in_chunks=False):
    sha256 = sha256 or hashlib.sha256(data).hexdigest()
    answer = await client.put(f"{path}/{sha256}", content=chunked(data) if in_chunks else data)
    return answer.status_code, answer.json().get("error", {}).get("code", "")


REFUSED = (413, "storage_quota")
PATHS = ("api/blobs", "api/data/pieces")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("in_chunks", [False, True], ids=["told", "chunked"])
async def test_who_uploads_without_end_is_refused_at_the_quota(api, path, in_chunks):
    quota(api, MB)
    ada, bob = api.client("ada-token"), api.client("bob-token")
    answers = [await put(ada, path, os.urandom(90 * KB), in_chunks=in_chunks) for _ in range(20)]
    assert answers == [(200, "")] * 11 + [REFUSED] * 9
    assert on_disk(api) == used(api) == 990 * KB
    assert await put(bob, path, os.urandom(90 * KB), in_chunks=in_chunks) == (200, "")


@pytest.mark.parametrize("in_chunks", [False, True], ids=["told", "chunked"])
async def test_many_at_once_do_not_slip_under_the_quota_together(api, in_chunks):
    quota(api, MB)
    clients = [api.client("ada-token") for _ in range(8)]
    sent = (
        put(client, path, os.urandom(150 * KB), in_chunks=in_chunks) for client in clients for path in PATHS
    )
    answers = await asyncio.gather(*sent)
    assert set(answers) == {(200, ""), REFUSED}
    # Those that came in chunks may all have been refused before they were whole.
    assert used(api) == on_disk(api) == answers.count((200, "")) * 150 * KB <= MB
    assert not api.context.storage.coming_bytes("ada")


async def test_the_same_blob_again_and_again_is_on_its_way_once_at_a_time(api):
    """A stored blob costs nothing again, but each upload needs space until it is complete."""
    quota(api, 500 * KB)
    sha256, data = a_blob(200 * KB)
    assert await put(api.client("ada-token"), "api/blobs", data) == (200, "")
    go_on = asyncio.Event()

    async def slowly():
        yield data[:1_000]
        await go_on.wait()
        yield data[1_000:]

    headers = {"Content-Length": str(len(data))}
    waiting = [
        asyncio.create_task(api.client("ada-token", **headers).put(f"api/blobs/{sha256}", content=slowly()))
        for _ in range(10)
    ]
    await eventually(lambda: api.context.storage.coming_bytes("ada") >= 300 * KB)
    assert api.context.storage.coming_bytes("ada") <= 500 * KB
    go_on.set()
    answers = [answer.status_code for answer in await asyncio.gather(*waiting)]
    assert set(answers) == {200, 413}
    assert used(api) == on_disk(api) == 200 * KB


KNOWN = [
    ("api/blobs", (422, "blob_damaged")),
    ("api/tasks/blobs", (422, "blob_damaged")),
    ("api/data/pieces", REFUSED),
    ("api/tasks/files", REFUSED),
    ("api/tasks/snapshots", REFUSED),
]


@pytest.mark.parametrize(("path", "refused"), KNOWN, ids=[path for path, _ in KNOWN])
@pytest.mark.parametrize("in_chunks", [False, True], ids=["told", "chunked"])
async def test_the_name_of_a_known_file_brings_no_room_for_a_larger_one(api, path, refused, in_chunks):
    """A large upload under the name of a known one-byte file must not reserve space that others need."""
    _, (agent,), _ = await api.running()
    client = agent.http if "tasks" in path else api.client("ada-token")
    quota(api, MB)
    most, storage = [], api.context.storage
    assert await put(client, path, b"1") == (200, "")
    grow = storage.on_its_way
    storage.on_its_way = lambda *arguments: (grow(*arguments), most.append(storage.coming_bytes("ada")))
    sha256 = hashlib.sha256(b"1").hexdigest()
    assert await put(client, path, os.urandom(2 * MB), sha256=sha256, in_chunks=in_chunks) == refused
    assert max(most, default=0) <= MB
    assert await put(client, path, b"1", in_chunks=in_chunks) == (200, "")
    assert not storage.unwritten_bytes and not storage.coming_bytes("ada")


async def test_a_piece_that_the_disk_has_cut_can_come_again(api):
    """Its name is known, but its size on disk differs: it counts as new and is accepted."""
    ada, (sha256, data) = api.client("ada-token"), a_blob(10 * KB)
    assert await put(ada, "api/data/pieces", data) == (200, "")
    os.truncate(api.context.data_sets.files.path(sha256), 4 * KB)
    assert await put(ada, "api/data/pieces", data) == (200, "")
    assert api.context.data_sets.files.size(sha256) == 10 * KB


async def test_a_length_of_two_words_is_no_small_one(disk, api):
    """Small results may use half of the database's reserve; a length of "9,9" is invalid."""
    _, (agent,), _ = await api.running()
    reserve(api, disk.folder)
    at = os.statvfs(disk.folder)
    with disk.ballast.open("wb") as file:
        file.write(b"\0" * (at.f_bavail * at.f_frsize - 2_500 * KB))
    sha256, data = a_blob(100 * KB)
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(api.url).port)
    head = f"PUT {PREFIX}api/tasks/blobs/{sha256} HTTP/1.1\r\nHost: hub\r\nMinicluster-Wire: 1\r\n"
    head += f"Authorization: {agent.http.headers['Authorization']}\r\nContent-Length: {len(data)},{len(data)}"
    writer.write(head.encode() + b"\r\n\r\n" + data)
    assert (await reader.readline()).split()[1] == b"507"
    writer.close()


@pytest.mark.parametrize("path", PATHS)
async def test_tiny_files_count_4_kb_each(api, path):
    quota(api, 20 * 4096)
    ada = api.client("ada-token")
    answers = [await put(ada, path, b"%d" % number) for number in range(25)]
    assert answers == [(200, "")] * 20 + [REFUSED] * 5


async def test_a_manifest_of_empty_files_counts_each_of_them(api):
    quota(api, 100 * 4096)
    files = ",".join(f'["{number}",0]' for number in range(200))
    manifest = f'{{"files":[{files}],"pieces":[]}}'.encode()
    assert await put(api.client("ada-token"), "api/data/pieces", manifest) == (200, "")
    name = hashlib.sha256(manifest).hexdigest()
    answer = await api.ask("PUT", "api/data/sets/x", json={"manifest_sha256": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == REFUSED
    assert (await api.ask("GET", "api/data")).json()["sets"] == []
    quota(api, 300 * 4096)
    for name_of_set, status in (("x", 200), ("y", 413)):
        answer = await api.ask("PUT", f"api/data/sets/{name_of_set}", json={"manifest_sha256": name})
        assert answer.status_code == status


def order(folder, files):
    return DataOrder(
        name=folder, folder=folder, manifest_sha256="a" * 64, size_bytes=0, files=files, attempt=1
    )


def test_a_full_disk_leaves_the_cache_nothing_and_says_so(tmp_path):
    with small_disk(tmp_path / "node", size_mb=4):
        cache = Cache(tmp_path / "node", "a token", limit_bytes=1 << 30)
        cache.open()
        before = cache.limit_bytes
        assert 0 < before < 4 << 20
        (tmp_path / "node/others").write_bytes(bytes(before + 4096))
        assert cache.limit_bytes == 0
        with pytest.raises(NoRoom, match="at most 0 bytes on its disk") as full:
            cache.make_room(order("first", 1), ())
        assert (full.value.passing, "free space" in full.value.hint) == (False, True)


def test_empty_files_leave_a_nodes_inodes_to_others(tmp_path):
    with small_disk(tmp_path / "node", nr_inodes=400):
        cache = Cache(tmp_path / "node", "a token")
        cache.open()
        cache.make_room(order("first", 300), ())
        cache.folder("first").mkdir()
        for number in range(300):
            (cache.folder("first") / f"{number}").touch()
        for files, in_use, passing in ((300, ("first",), True), (390, (), False)):
            with pytest.raises(NoRoom, match="more than the node's disk has inodes to spare") as full:
                cache.make_room(order("second", files), in_use)
            assert full.value.passing is passing
        assert [entry.folder for entry in cache.entries()] == ["first"]
        cache.make_room(order("second", 300), ())
        assert [entry.folder for entry in cache.entries()] == ["second"]
        assert cache.spare_files() > 300


async def test_a_question_for_what_is_missing_is_refused_before_anything_is_sent(api):
    quota(api, MB)
    piece = {"sha256": "a" * 64, "size_bytes": 2 * MB}
    answer = await api.ask("POST", "api/data/missing", json={"pieces": [piece]})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == REFUSED
    assert error["message"] == (
        "2 MB more of data sets would be over your storage quota of 1 MB: 0 bytes are used (nothing yet)"
    )
    assert "%distribute storage" in error["hint"]


@pytest.mark.parametrize("kind", ["blobs", "snapshots", "files"])
@pytest.mark.parametrize("in_chunks", [False, True], ids=["told", "chunked"])
async def test_a_job_writes_no_more_than_its_owner_may_keep(api, kind, in_chunks):
    """Whatever it reports, files count from the moment they exist."""
    _, (agent,), (run,) = await api.running()
    quota(api, MB)
    answers = [
        await put(agent.http, f"api/tasks/{kind}", os.urandom(90 * KB), in_chunks=in_chunks)
        for _ in range(20)
    ]
    assert answers == [(200, "")] * 11 + [REFUSED] * 9
    assert used(api) == on_disk(api)
    _, (his,), _ = await api.running("bob", payload=b"bob's cell")
    assert await put(his.http, f"api/tasks/{kind}", os.urandom(90 * KB)) == (200, "")
    # The job's files count for its owner's uploads, too; the job itself runs to its end.
    assert await put(api.client("ada-token"), "api/blobs", os.urandom(90 * KB)) == REFUSED
    await agent.finish(run)
    await api.until(run.job_id, "succeeded")


async def test_many_small_files_of_a_job_at_once_count_4_kb_each(api):
    _, (agent,), _ = await api.running()
    quota(api, 101 * 4096)
    answers = []
    for batch in range(5):
        contents = [f"{batch * 30 + number}aaa".encode().hex()[:8] for number in range(30)]
        answer = await agent.http.post("api/tasks/files", json={"contents": contents})
        answers.append(answer.status_code)
    assert answers == [204, 204, 204, 413, 413]
    assert used(api) == on_disk(api) <= 101 * 4096


async def send_output(agent, run, stream, offset, data):
    chunk = StreamChunk.model_construct(stream=stream, offset=offset, data=data)
    return await agent.report(attempt=run.attempt, chunks=(chunk,))


async def test_a_job_that_prints_without_end_is_cut_at_the_quota_and_goes_on(api):
    job, (agent,), (run,) = await api.running()
    quota(api, MB)
    line, offset = b"x" * 50_000, 0
    for _ in range(40):
        sizes = (await send_output(agent, run, "rank-0", offset, line)).sizes
        offset += len(line)
        assert sizes["rank-0"] == offset  # accepted, so that its agent does not send it again
    kept = (await api.ask("GET", f"api/jobs/{job.id}/log")).content
    assert 700 * KB < len(kept) <= MB and set(kept) == {ord("x")}
    assert used(api) <= MB
    assert "is not stored" in (await api.ask("GET", f"api/jobs/{job.id}")).json()["note"]
    history = (await api.ask("GET", f"api/jobs/{job.id}/history")).json()["lines"]
    (note,) = [line["text"] for line in history if line["kind"] == "note"]
    assert "storage quota of 1 MB" in note and "%distribute storage" in note
    _, (his,), (bobs,) = await api.running("bob", payload=b"bob's cell")
    await send_output(his, bobs, "rank-0", 0, line)
    assert (await api.ask("GET", f"api/jobs/{bobs.job_id}/log", "bob-token")).content == line
    await agent.finish(run)
    await api.until(job.id, "succeeded")


async def test_a_new_stream_does_not_slip_under_the_quota(api):
    _, (agent,), (run,) = await api.running()
    quota(api, 200 * KB)
    for stream in ("rank-0", "display-0", "records"):
        await send_output(agent, run, stream, 0, b"x" * 150_000)
    assert on_disk(api) <= 200 * KB + 3 * 4096  # each cut is a file, too
    assert used(api) <= 200 * KB


async def test_output_counts_right_after_a_restart(start_api):
    async with start_api() as first:
        job, (agent,), (run,) = await first.running()
        await send_output(agent, run, "rank-0", 0, b"x" * 300_000)
        before = used(first)
    async with start_api() as second:
        assert used(second) == before >= 300 * KB
        rows = second.context.store.storage
        rows.remove(job.id, StorageKind.OUTPUT, [""])  # as from a release that did not count it
        second.context.storage.measure_outputs(second.context.logs.jobs(), second.context.logs.cost_bytes)
        assert rows.output_bytes(job.id) == 300_000


async def test_jobs_without_end_count_though_they_are_only_rows(api):
    """Each row may have 100 KB of variables and parts, and remains after the job's end."""
    quota(api, 410 * KB)
    first = await api.submit("ada", payload=b"a cell", nodes=5)

    async def one_more():
        spec = {"payload_sha256": hashlib.sha256(b"a cell").hexdigest(), "nodes": {"min": 5, "max": 5}}
        spec["env"] = {"A": "\N{GRINNING FACE}" * 8_000}
        answer = await api.ask("POST", "api/jobs", json={"idempotency_key": uuid4().hex, "spec": spec})
        if answer.status_code == 201:
            await api.ask("POST", f"api/jobs/{answer.json()['id']}/stop")
        return answer

    answers = [await one_more() for _ in range(15)]
    assert [answer.status_code for answer in answers] == [201] * 12 + [413] * 3
    assert answers[-1].json()["error"]["code"] == "storage_quota"
    removed = answers[0].json()["id"]
    await api.until(removed, "stopped")
    assert (await api.ask("DELETE", f"api/jobs/{removed}/storage")).status_code == 204
    assert not api.context.store.job(removed).spec.env, "its row has shrunk"
    assert (await one_more()).status_code == 201
    assert api.context.store.job(first.id).state == "queued", "what waits goes on"


async def test_jobs_submitted_and_removed_for_ever_leave_few_rows(api, monkeypatch):
    """The rest of a removed job counts for no user, so their number is limited."""
    monkeypatch.setattr(job_rows, "MOST_REMOVED", 5)
    quota(api, MB)

    def rows():
        names = ("jobs", "events", "job_files", "job_blobs", "notices")
        with api.context.store._database.read() as connection:
            return [connection.exec_driver_sql(f"SELECT COUNT(*) FROM {name}").scalar() for name in names]

    counts, ids = [], []
    for number in range(20):
        job = await api.submit("ada", payload=b"a cell", nodes=5, name=f"job-{number}")
        await api.ask("POST", f"api/jobs/{job.id}/stop")
        await api.until(job.id, "stopped")
        assert (await api.ask("DELETE", f"api/jobs/{job.id}/storage")).status_code == 204
        counts.append(rows())
        ids.append(job.id)
    assert counts[-1] == counts[9] and used(api) == 0
    assert (await api.ask("GET", f"api/jobs/{ids[0]}")).status_code == 404
    listed = (await api.ask("GET", "api/jobs")).json()["jobs"]
    assert [job["id"] for job in listed] == ids[:-6:-1]


async def test_what_a_job_tells_of_its_end_counts(api):
    """The database stores errors and notes: up to 4 MB per attempt, 500 KB per job."""
    job, (agent,), (run,) = await api.running()
    before = used(api)
    for number in range(100):
        await agent.report(attempt=run.attempt, notes=(f"{number} {'n' * 1_900}",))
    api.context.storage.forget("ada")
    assert used(api) - before > 180 * KB
    quota(api, 200 * KB)
    assert await put(api.client("ada-token"), "api/blobs", os.urandom(90 * KB)) == REFUSED
    await agent.finish(run)
    await api.until(job.id, "succeeded")
    assert (await api.ask("DELETE", f"api/jobs/{job.id}/storage")).status_code == 204
    assert used(api) == 0


async def test_what_an_agent_tells_of_its_own_failure_counts_and_is_short(api):
    """Each request of the task reads it: with the largest stack, 2.5 MB each time."""
    frames = tuple(StackFrame(file="f" * 512, line=1, function="g" * 512, text="t" * 200) for _ in range(100))
    stack = RankStack(rank=0, sight=StackStatus.SEEN, frames=frames, helpers=(frames,) * 4)
    failure = JobError(kind=ErrorKind.START, message="m", traceback="t" * 60 * KB, stack=stack)
    job, (agent,), (run,) = await api.running()
    before = used(api)
    await agent.report(attempt=run.attempt, failure=failure)
    await api.until(job.id, "failing")
    api.context.storage.forget("ada")
    assert 50 * KB < used(api) - before < 80 * KB, "the traceback counts, the stack is not kept"
    (task,) = api.context.store.open_state().tasks
    assert task.failure and task.failure.stack is None and task.failure.traceback


async def test_rows_of_files_and_snapshots_that_are_only_told_have_an_end(api):
    """One small file under many names costs 4 KB on disk, but its rows fill the database."""
    _, (agent,), (run,) = await api.running()
    data = b"one"
    blob = BlobInfo(sha256=hashlib.sha256(data).hexdigest(), size_bytes=3)
    for kind in ("files", "snapshots"):
        assert await put(agent.http, f"api/tasks/{kind}", data) == (200, "")
    for start in range(0, 12_000, 500):
        numbers = range(start, start + 500)
        artifacts = tuple(
            ArtifactReport(path=f"{number}", part=number % 10_000, blob=blob) for number in numbers
        )
        snapshots = tuple(
            SnapshotReport(step=number, part=0, parts=2, attempt=run.attempt, blob=blob)
            for number in numbers[:64]
        )
        await agent.report(attempt=run.attempt, artifacts=artifacts, snapshots=snapshots)
    again = await agent.report(
        attempt=run.attempt, artifacts=(artifacts[0], ArtifactReport(path="0", part=0, blob=blob))
    )
    assert again.missing == ()
    with api.context.store._database.read() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM artifacts").scalar() == run.output.files
    with api.context.store._database.read() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM snapshots").scalar() == 1_000


async def test_one_file_under_many_names_counts_for_each(api):
    """Each is a row of up to 2 KB, and a job may have 10,000 for each task."""
    _, (agent,), (run,) = await api.running()
    quota(api, MB)
    sha256, data = a_blob(1)
    assert await put(agent.http, "api/tasks/files", data) == (200, "")
    blob = BlobInfo(sha256=sha256, size_bytes=1)
    names = tuple(ArtifactReport(path=f"{number}/{'p' * 900}", part=0, blob=blob) for number in range(300))
    for _ in range(2):
        await agent.report(attempt=run.attempt, artifacts=names)
    assert len((await api.ask("GET", f"api/jobs/{run.job_id}/files")).json()["artifacts"]) == 300
    assert 300 * 4096 < used(api) < 310 * 4096
    assert await put(agent.http, "api/tasks/files", os.urandom(10)) == REFUSED
    assert await put(api.client("ada-token"), "api/blobs", os.urandom(10)) == REFUSED


async def test_one_users_manifests_do_not_hold_up_anothers(api, monkeypatch):
    """Manifests are checked one at a time, and each user may have one waiting."""
    files = ",".join(f'["{number}",0]' for number in range(20))
    manifest = f'{{"files":[{files}],"pieces":[]}}'.encode()
    name = {"manifest_sha256": hashlib.sha256(manifest).hexdigest()}
    for owner in ("ada", "bob"):
        assert await put(api.client(f"{owner}-token"), "api/data/pieces", manifest) == (200, "")
    async with api.context.data_sets.reading:
        first = asyncio.create_task(api.ask("PUT", "api/data/sets/one", json=name))
        await eventually(lambda: api.context.data_sets.storing)
        second = await api.ask("PUT", "api/data/sets/two", json=name)
        assert (second.status_code, second.json()["error"]["code"]) == (429, "push_under_way")
        bobs = asyncio.create_task(api.ask("PUT", "api/data/sets/his", "bob-token", json=name))
    assert (await first).status_code == (await bobs).status_code == 200
    assert not api.context.data_sets.storing


async def test_what_a_task_says_of_its_files_changes_nothing(api):
    """For wrong sizes and missing files, only received data counts, plus 4 KB for each further name."""
    _, (agent,), (run,) = await api.running()
    before = used(api)
    sha256, data = a_blob(50 * KB)
    assert await put(agent.http, "api/tasks/files", data) == (200, "")
    blob, lie = BlobInfo(sha256=sha256, size_bytes=len(data)), BlobInfo(sha256=sha256, size_bytes=0)
    artifacts = [ArtifactReport(path=f"{number}", part=0, blob=blob) for number in range(50)]
    artifacts.append(ArtifactReport(path="lie", part=0, blob=lie))
    snapshots = (SnapshotReport(step=1, attempt=run.attempt, blob=blob),)
    report = {"attempt": run.attempt, "artifacts": tuple(artifacts), "snapshots": snapshots}
    message = TaskReport(ready=True, store_port=4000, **report)
    await agent.http.post("api/tasks/report", content=message.model_dump_json())
    assert used(api) - before == 50 * KB + 49 * 4096


async def test_the_service_counts_right_after_a_restart(start_api):
    async with start_api() as first:
        quota(first, MB)
        await put(first.client("ada-token"), "api/blobs", os.urandom(600 * KB))
    async with start_api() as second:
        quota(second, MB)
        assert await put(second.client("ada-token"), "api/blobs", os.urandom(600 * KB)) == REFUSED
        assert await put(second.client("ada-token"), "api/blobs", os.urandom(300 * KB)) == (200, "")


# --- the database's reserve -------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    """All data of the service is on a disk of 64 MB."""
    with small_disk(tmp_path, size_mb=64) as made:
        yield made


def reserve(api, folder, size_bytes=100 * MB):
    """Set the reserve of free space; a twentieth at most."""
    api.context.storage.disk = DiskSpace(folder, size_bytes)


async def test_uploads_leave_the_database_its_room(disk, api):
    _, (agent,), _ = await api.running()
    reserve(api, disk.folder)
    ada, full = api.client("ada-token"), (507, "disk_full")
    answers = [await put(ada, "api/blobs", os.urandom(MB), in_chunks=number % 2 > 0) for number in range(70)]
    assert answers[0] == (200, "") and answers[-1] == full
    free = os.statvfs(disk.folder)
    assert free.f_bavail * free.f_frsize > (64 << 20) // 20 - 500 * KB  # the database has written, too
    assert not api.context.storage.unwritten_bytes
    assert await put(api.client("bob-token"), "api/data/pieces", os.urandom(10 * MB)) == full
    for kind in ("snapshots", "files"):
        assert await put(agent.http, f"api/tasks/{kind}", os.urandom(10 * MB)) == full


async def test_states_events_stops_and_small_results_go_on_in_the_reserve(disk, api):
    job, (agent,), (run,) = await api.running()
    reserve(api, disk.folder)
    at = os.statvfs(disk.folder)
    with disk.ballast.open("wb") as file:
        file.write(b"\0" * (at.f_bavail * at.f_frsize - 2_500 * KB))  # three quarters of the reserve are left
    sha256, result = a_blob(100 * KB)
    assert await put(agent.http, "api/tasks/blobs", os.urandom(2 * MB)) == (507, "disk_full")
    assert await put(agent.http, "api/tasks/blobs", result) == (200, "")
    assert await put(api.client("ada-token"), "api/blobs", result[:1000]) == (507, "disk_full")
    await agent.finish(run, result=BlobInfo(sha256=sha256, size_bytes=len(result)))
    await api.until(job.id, "succeeded")
    assert (await api.ask("GET", f"api/jobs/{job.id}/result")).content == result


async def test_small_results_do_not_eat_up_the_reserve(disk, api):
    _, (agent,), _ = await api.running()
    reserve(api, disk.folder)
    at = os.statvfs(disk.folder)
    with disk.ballast.open("wb") as file:
        file.write(b"\0" * (at.f_bavail * at.f_frsize - 3_000 * KB))
    answers = {await put(agent.http, "api/tasks/blobs", os.urandom(100 * KB)) for _ in range(30)}
    assert answers == {(200, ""), (507, "disk_full")}
    left = os.statvfs(disk.folder)
    assert left.f_bavail * left.f_frsize > (64 << 20) // 40 - 500 * KB  # the database has written, too


async def test_inodes_are_kept_for_the_database_too(tmp_path, api):
    with small_disk(tmp_path / "few", nr_inodes=1000) as made:
        at = os.statvfs(made.folder)
        room = DiskSpace(made.folder, MB)
        room.check(0)
        for number in range(at.f_favail - 40):
            (made.folder / f"{number}").touch()
        api.context.storage.disk = room
        ada = api.client("ada-token")
        assert await put(ada, "api/blobs", b"one more") == (507, "disk_full")


@pytest.mark.parametrize("in_chunks", [False, True], ids=["told", "chunked"])
async def test_many_at_once_do_not_slip_under_the_reserve_together(disk, api, in_chunks):
    reserve(api, disk.folder)
    at = os.statvfs(disk.folder)
    with disk.ballast.open("wb") as file:
        file.write(b"\0" * (at.f_bavail * at.f_frsize - 8 * MB))
    clients = [api.client("ada-token") for _ in range(12)]
    sent = (put(client, "api/blobs", os.urandom(MB), in_chunks=in_chunks) for client in clients)
    answers = await asyncio.gather(*sent)
    assert (507, "disk_full") in answers
    left = os.statvfs(disk.folder)
    assert left.f_bavail * left.f_frsize > (64 << 20) // 20 - 500 * KB
    assert not api.context.storage.unwritten_bytes
