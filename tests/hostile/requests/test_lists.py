"""Lists that a user can lengthen have pages or a limit, so that no answer blocks the service."""

import asyncio
import hashlib
import time

from minicluster.client.client import JobServiceClient
from minicluster.wire import ArtifactReport, BlobInfo, ImageState
from minicluster_hub.datasets.manager import MOST_OF_OWNER
from minicluster_hub.jobs.records import DataSetRecord, ImageRecord, UseRecord

from ...service.api.data import make_folder, push
from ...service.api.storage.test_publishing import ask, job_that_left, lab, layer_and_recipe, start_lab

__all__ = ["lab", "start_lab"]  # fixtures

DATA = b"one"
BLOB = BlobInfo(sha256=hashlib.sha256(DATA).hexdigest(), size_bytes=len(DATA))
LONG = "p" * 900


async def many_files(api, count):
    """Create a job of Ada's with so many files with long names; return its id."""
    _, (agent,), (run,) = await api.running()
    answer = await agent.http.put(f"api/tasks/files/{BLOB.sha256}", content=DATA)
    assert answer.status_code == 200, answer.text
    for start in range(0, count, 500):
        numbers = range(start, min(count, start + 500))
        reports = tuple(ArtifactReport(path=f"{LONG}/{number:05}", part=0, blob=BLOB) for number in numbers)
        await agent.report(attempt=run.attempt, artifacts=reports)
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
    service = JobServiceClient(api.url, "ada-token", retry_for_s=5)
    try:
        listed = await asyncio.to_thread(service.artifacts, job_id)
    finally:
        service.close()
    assert [int(one.path[-5:]) for one in listed.artifacts] == list(range(2_500))
    assert not listed.left and not listed.more


async def test_data_sets_that_everybody_sees_have_an_end(api, tmp_path):
    folder = make_folder(tmp_path / "pets", {"a.txt": 100})
    await push(api, folder, "first", shared=True)
    for number in range(MOST_OF_OWNER - 1):
        record = DataSetRecord("ada", f"set-{number}", "a" * 64, 1, 1, True, 1.0)
        api.context.store.datasets.keep(record, [])
    name = api.context.store.datasets.find("ada", "first").manifest_sha256
    answer = await api.ask("PUT", "api/data/sets/one-more", json={"manifest_sha256": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "too_many_data_sets")
    assert (await api.ask("PUT", "api/data/sets/first", json={"manifest_sha256": name})).status_code == 200
    assert len((await api.ask("GET", "api/data", "bob-token")).json()["sets"]) == MOST_OF_OWNER
    await push(api, folder, "his", owner="bob")


async def test_images_of_one_user_have_an_end(lab):
    for number in range(100):
        digest = f"sha256:{number:064x}"
        where = f"127.0.0.1:5100/published/ada/{number}@{digest}"
        record = (digest, f"image-{number}", where, "ada", "", "cpu", 1, digest, None, ImageState.PENDING)
        lab.context.store.images.publish(ImageRecord(*record, created_at=1.0, changed_at=1.0))
    job_id = await job_that_left(lab, layer_and_recipe())
    answer = await ask(lab, job_id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "too_many_images")
    lab.context.store.images.change(f"sha256:{0:064x}", ImageState.RETIRED, 2.0)
    assert (await ask(lab, job_id)).status_code == 202


async def test_ones_own_hours_are_read_without_everybodys(api, monkeypatch):
    """Years of use give many rows; a thread reads only the user's own."""
    began = time.time() - 100
    uses = [
        UseRecord(0, owner, 1, None, 1, "node-1", 1, 1, began, began + 10) for owner in ("ada", *["bob"] * 50)
    ]
    api.context.store.usage.change([], uses, began)
    read = []
    since = api.context.store.usage.since
    monkeypatch.setattr(
        api.context.store.usage, "since", lambda *asked: [read.append(use) or use for use in since(*asked)]
    )
    rows = (await api.ask("GET", "api/usage", params={"from": 0})).json()["rows"]
    assert [row["owner"] for row in rows] == ["ada"] and len(read) == 1
    rows = (await api.ask("GET", "api/usage", "root-token", params={"from": 0})).json()["rows"]
    assert {row["owner"] for row in rows} == {"ada", "bob"}
