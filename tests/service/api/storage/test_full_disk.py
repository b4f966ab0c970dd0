"""A full disk under the service: reported in a message, no data lost; all continues once there is space."""

import asyncio
import hashlib
import os
import subprocess
from contextlib import contextmanager

import pytest

from minicluster.wire import ErrorKind, JobError, RankReport, RankState, StreamChunk

from ....patience import WITHIN_S

MB = 1 << 20


class SmallDisk:
    """A separate disk of a few MB, which can be filled to the last byte and emptied."""

    def __init__(self, folder):
        self.folder = folder
        self.ballast = folder / "ballast"

    def fill(self):
        with self.ballast.open("ab", buffering=0) as file:
            for size in (MB, 4096, 1):
                while True:
                    try:
                        file.write(b"\0" * size)
                    except OSError:
                        break

    def empty(self):
        self.ballast.unlink()


@contextmanager
def small_disk(folder, size_mb=8, nr_inodes=0):
    """Mount a small disk; nr_inodes 0: no limit."""
    folder.mkdir(exist_ok=True)
    options = f"size={size_mb}m,mode=700" + (f",nr_inodes={nr_inodes}" if nr_inodes else "")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "test", folder], capture_output=True)
    if mounted.returncode:
        if os.environ.get("CI"):
            pytest.fail("mounting a small disk is not allowed here (required where CI is set)")
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def disk(tmp_path):
    """The disk that the test fills: for logs, blobs, or the database (all data)."""
    with small_disk(tmp_path) as made:
        yield made


@pytest.fixture
def logs_disk(tmp_path):
    with small_disk(tmp_path / "logs") as made:
        yield made


@pytest.fixture
def blobs_disk(tmp_path):
    with small_disk(tmp_path / "blobs") as made:
        yield made


async def test_output_waits_at_its_agent_while_the_disk_is_full(logs_disk, api):
    job, (agent,), (run,) = await api.running()
    assert (await agent.say(run, "rank-0", 0, b"before\n")).sizes["rank-0"] == 7
    logs_disk.fill()
    with pytest.raises(AssertionError, match="disk is full"):
        await agent.say(run, "rank-0", 7, b"x" * 10_000)
    shown = (await api.ask("GET", f"api/jobs/{job.id}")).json()
    assert "disk is full" in shown["note"]
    logs_disk.empty()
    kept = api.context.logs.size(job.id, 1, "rank-0")
    assert (await agent.say(run, "rank-0", kept, b"x" * (10_007 - kept))).sizes["rank-0"] == 10_007
    assert not (await api.ask("GET", f"api/jobs/{job.id}")).json().get("note")
    await agent.finish(run)
    await api.until(job.id, "succeeded")
    assert (await api.ask("GET", f"api/jobs/{job.id}/log")).content == b"before\n" + b"x" * 10_000


async def test_a_job_can_be_stopped_while_the_disk_is_full(logs_disk, api):
    """Its output is then incomplete: freeing the slots is more important."""
    job, (agent,), (run,) = await api.running()
    logs_disk.fill()
    assert (await api.ask("POST", f"api/jobs/{job.id}/stop")).json()["state"] == "stopping"
    with pytest.raises(AssertionError, match="disk is full"):
        await agent.say(run, "rank-0", 0, b"x" * 10_000)
    await agent.finish(run)
    await api.until(job.id, "stopped")


async def test_a_failure_is_told_while_the_disk_is_full(logs_disk, api):
    job, (agent,), (run,) = await api.running()
    logs_disk.fill()
    chunk = StreamChunk.model_construct(stream="rank-0", offset=0, data=b"x" * 10_000)
    error = JobError(kind=ErrorKind.EXCEPTION, message="ValueError: no", rank=0)
    failed = RankReport(rank=0, state=RankState.EXITED, exit_code=1, error=error)
    with pytest.raises(AssertionError, match="disk is full"):
        await agent.report(attempt=run.attempt, ranks=(failed,), chunks=(chunk,), cleared=run.attempt)
    await api.until(job.id, "failing")
    assert api.context.store.job(job.id).state == "failing", "cleared before its output was kept"
    logs_disk.empty()
    await agent.report(attempt=run.attempt, ranks=(failed,), chunks=(chunk,), cleared=run.attempt)
    await api.until(job.id, "failed")
    assert (await api.ask("GET", f"api/jobs/{job.id}")).json()["error"]["message"] == "ValueError: no"


async def test_a_blob_is_refused_in_words_and_taken_later(blobs_disk, api):
    data = os.urandom(9 * MB)
    path = f"api/blobs/{hashlib.sha256(data).hexdigest()}"
    answer = await api.ask("PUT", path, content=data)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "disk_full")
    assert "disk is full" in answer.json()["error"]["message"]
    assert not [file for file in blobs_disk.folder.rglob("*") if file.is_file()]
    small = data[:MB]
    path = f"api/blobs/{hashlib.sha256(small).hexdigest()}"
    assert (await api.ask("PUT", path, content=small)).status_code == 200


async def test_a_database_without_room_says_so_and_the_service_goes_on(disk, api):
    job, (agent,), (run,) = await api.running()
    disk.fill()
    answers = [await api.ask("POST", f"api/jobs/{job.id}/stop") for _ in range(3)]
    assert {answer.status_code for answer in answers} == {507}
    assert "disk is full" in answers[-1].json()["error"]["message"]
    assert (await api.ask("GET", f"api/jobs/{job.id}")).json()["state"] == "running"
    assert (await agent.orders()).stop is None
    disk.empty()
    assert (await api.ask("POST", f"api/jobs/{job.id}/stop")).json()["state"] == "stopping"
    async with asyncio.timeout(WITHIN_S):
        while (await agent.orders()).stop is None:
            await asyncio.sleep(0.01)
    await agent.finish(run)
    await api.until(job.id, "stopped")
