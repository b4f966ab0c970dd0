"""Users' storage: shown with the largest items, and freed when these are removed."""

import asyncio
import hashlib

from minicluster.wire import StorageReport

from ..data import make_folder, push
from ..jobs.test_retention import blobs_of, ended, put, sha
from . import test_snapshots as snapshots


async def report(api, token="ada-token", **params):
    answer = await api.ask("GET", "api/storage", token, params=params)
    assert answer.status_code == 200, answer.text
    return StorageReport.model_validate_json(answer.content)


async def kept(api, token="ada-token"):
    """Return the user's stored bytes by kind."""
    (own,) = (await report(api, token)).owners
    assert own.used_bytes == sum(use.size_bytes for use in own.uses)
    return {use.kind.value: use.size_bytes for use in own.uses}


async def remove(api, job, token="ada-token"):
    return await api.ask("DELETE", f"api/jobs/{job.id}/storage", token)


async def test_a_user_sees_what_is_largest_of_their_own(api, tmp_path):
    assert await kept(api) == {}
    job = await ended(api, result=b"r" * 50_000)
    await push(api, make_folder(tmp_path / "pets", {"a": 20_000}), "pets")
    await ended(api, "bob", payload=b"bob's cell")
    current = await report(api)
    assert [one.owner for one in current.owners] == ["ada"]
    assert {thing.owner for thing in current.things} == {"ada"}
    first, second = current.things
    assert (first.job_id, second.name, second.size_bytes) == (job.id, "pets", 20_000)
    by_kind = {use.kind.value: (use.size_bytes, use.files) for use in first.uses}
    assert by_kind["cells"] == (50_000 + 4 * 4096, 5)
    assert by_kind["snapshots"] == (4096, 1)
    assert current.disk is None
    uses = await kept(api)
    assert uses["cells"] == 50_000 + 4 * 4096
    assert uses["data"] == 20_000 + 2 * 4096  # its manifest, and the data set itself


async def test_admins_see_everyone_and_the_disk_others_do_not(api):
    await ended(api)
    await ended(api, "bob", payload=b"bob's cell", result=b"r" * 50_000)
    current = await report(api, "root-token", owner="all")
    assert [one.owner for one in current.owners] == ["bob", "ada"]
    assert {thing.owner for thing in current.things} == {"ada", "bob"}
    assert current.disk.total_bytes > current.disk.free_bytes > 0
    assert (await api.ask("GET", "api/storage", params={"owner": "all"})).status_code == 403


async def test_what_an_ended_job_keeps_goes_at_once_and_its_history_stays(api):
    job = await ended(api)
    await ended(api, "bob", payload=b"bob's cell", result=b"bob's", bundle=b"bob's files")
    bobs = blobs_of(api) - {sha(data) for data in (b"a cell", b"a result", b"files", b"files and a part")}
    assert (await remove(api, job)).status_code == 204
    assert await kept(api) == {}
    assert blobs_of(api) == bobs
    assert job.id not in {*api.context.logs.jobs(), *api.context.blobs.jobs(), *api.context.blobs.outputs()}
    assert (await snapshots.listed(api, job)) == ()
    for path in ("result", "log", "cell"):
        assert (await api.ask("GET", f"api/jobs/{job.id}/{path}")).status_code == 410
    history = (await api.ask("GET", f"api/jobs/{job.id}/history")).json()["lines"]
    assert "were removed by ada" in history[-1]["text"]
    assert (await remove(api, job)).status_code == 204  # again is no harm
    assert len((await api.ask("GET", f"api/jobs/{job.id}/history")).json()["lines"]) == len(history)


async def test_what_another_job_names_stays_and_what_another_user_brought_too(api):
    job = await ended(api, result=b"one")
    again = await ended(api, result=b"two")
    await put(api, b"one", "bob")
    assert (await remove(api, job)).status_code == 204
    assert blobs_of(api) == {
        sha(b"a cell"),
        sha(b"files"),
        sha(b"files and a part"),
        sha(b"one"),
        sha(b"two"),
    }
    assert await kept(api, "bob-token") == {"cells": 4096}
    assert (await api.ask("GET", f"api/jobs/{again.id}/cell")).content == b"a cell"
    assert (await api.ask("GET", f"api/jobs/{again.id}/result")).content == b"two"
    assert (await remove(api, again)).status_code == 204
    assert blobs_of(api) == {sha(b"one")}


async def test_only_its_owner_and_admins_remove_what_a_job_keeps_and_only_at_its_end(api):
    job = await ended(api)
    open_job, _, _ = await api.running("ada", payload=b"another cell")
    assert (await remove(api, job, "bob-token")).status_code == 404
    assert (await remove(api, job, "reader-token")).status_code == 403
    refused = await remove(api, open_job)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "job_open")
    assert (await remove(api, job, "root-token")).status_code == 204
    things = (await report(api)).things
    assert [(thing.job_id, thing.open) for thing in things] == [(open_job.id, True)]


async def test_a_blob_that_comes_again_while_its_job_is_removed_stays(api):
    job = await ended(api, payload=b"again" * 1_000)
    data, go_on = b"again" * 1_000, asyncio.Event()

    async def slowly():
        yield data[:10]
        await go_on.wait()
        yield data[10:]

    client = api.client("ada-token", **{"Content-Length": str(len(data))})
    coming = asyncio.create_task(client.put(f"api/blobs/{sha(data)}", content=slowly()))
    while not api.context.storage.is_coming(sha(data)):
        await asyncio.sleep(0.01)
    assert (await remove(api, job)).status_code == 204
    assert blobs_of(api) == {sha(data)}
    go_on.set()
    assert (await coming).status_code == 200
    assert (await api.ask("HEAD", f"api/blobs/{sha(data)}")).status_code == 200
    assert hashlib.sha256(api.context.blobs.path(sha(data)).read_bytes()).hexdigest() == sha(data)
