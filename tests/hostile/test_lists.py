"""Lists that a user can make long: each has pages or an end, so that no answer holds up the service."""

import asyncio
import hashlib

from minicluster.client import Service
from minicluster.wire import ArtifactReport, BlobInfo

DATA = b"one"
BLOB = BlobInfo(sha256=hashlib.sha256(DATA).hexdigest(), size_bytes=len(DATA))
LONG = "p" * 900


async def many_files(api, count):
    """Have a job of Ada's with so many files of long names; return its id."""
    _, (agent,), (run,) = await api.running()
    answer = await agent.http.put(f"api/tasks/files/{BLOB.sha256}", content=DATA)
    assert answer.status_code == 200, answer.text
    for start in range(0, count, 500):
        numbers = range(start, min(count, start + 500))
        told = tuple(ArtifactReport(path=f"{LONG}/{number:05}", part=0, blob=BLOB) for number in numbers)
        await agent.report(attempt=run.attempt, artifacts=told)
    return run.job_id


async def test_files_of_a_job_come_page_by_page(api):
    job_id = await many_files(api, 2_500)
    path = f"api/jobs/{job_id}/files"
    page = (await api.ask("GET", path)).json()
    assert len(page["artifacts"]) == 1000 and page["more"]
    assert "first 1000 files" in page["left"][-1], "a client of an earlier release asks for no more"
    few = (await api.ask("GET", path, params={"limit": 1, "after": f"0/{LONG}/02498"})).json()
    assert [one["path"][-5:] for one in few["artifacts"]] == ["02499"]
    assert not few["more"] and not few["left"]
    for wrong in ({"limit": 1001}, {"limit": 0}, {"after": "x"}, {"after": "0"}, {"after": "99999/x"}):
        assert (await api.ask("GET", path, params=wrong)).status_code == 422, wrong


async def test_a_notebook_reads_all_pages(api):
    job_id = await many_files(api, 2_500)
    service = Service(api.url, "ada-token", patience_s=5)
    try:
        listed = await asyncio.to_thread(service.artifacts, job_id)
    finally:
        service.close()
    assert [int(one.path[-5:]) for one in listed.artifacts] == list(range(2_500))
    assert not listed.left and not listed.more
