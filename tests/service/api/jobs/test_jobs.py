"""Jobs by REST: submit, list, get, stop, log, result, and error messages."""

import asyncio
import base64
import hashlib
from uuid import uuid4

import pytest

from minicluster.client.client import JobServiceClient
from minicluster.wire import BlobInfo, JobList, NodeList

from .... import messages
from ..data import count

SHA256 = "a" * 64


def submission(**spec):
    return {"idempotency_key": "key-00001", "spec": {"payload_sha256": SHA256, **spec}}


async def test_a_job_is_submitted_once_per_key(api):
    first = await api.submit(key="the-same-key", nodes=5)
    again = await api.submit(key="the-same-key", nodes=5)
    other = await api.submit(owner="bob", key="the-same-key", nodes=5)
    assert first.id == again.id != other.id
    assert first.owner == "ada"
    assert [job.id for job in api.context.store.jobs(None)] == [other.id, first.id]


async def test_a_submit_tells_new_from_known_by_its_status(api):
    sha256 = hashlib.sha256(b"cell").hexdigest()
    await api.ask("PUT", f"api/blobs/{sha256}", content=b"cell")
    body = submission(payload_sha256=sha256)
    statuses = [(await api.ask("POST", "api/jobs", json=body)).status_code for _ in range(2)]
    assert statuses == [201, 200]


async def test_a_job_without_its_payload_is_refused(api):
    answer = await api.ask("POST", "api/jobs", json=submission())
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "payload_missing"


async def test_another_users_blob_is_not_a_payload(api):
    sha256 = hashlib.sha256(b"bob's").hexdigest()
    await api.ask("PUT", f"api/blobs/{sha256}", "bob-token", content=b"bob's")
    answer = await api.ask("POST", "api/jobs", json=submission(payload_sha256=sha256))
    assert answer.json()["error"]["code"] == "payload_missing"
    assert (await api.ask("HEAD", f"api/blobs/{sha256}")).status_code == 404
    assert (await api.ask("HEAD", f"api/blobs/{sha256}", "bob-token")).status_code == 200


async def test_the_client_does_not_send_a_large_blob_again_that_is_here(api):
    data = uuid4().bytes * 10_000
    client = JobServiceClient(api.url, "ada-token", retry_for_s=5)
    first, second = [await asyncio.to_thread(client.put_blob, data) for _ in range(2)]
    client.close()
    assert first == second and first.sha256 == hashlib.sha256(data).hexdigest()
    assert count(api, "PUT", "api/blobs/{sha256}") == 1


@pytest.mark.parametrize(
    ("spec", "code", "told"),
    [
        ({"gpus": 2}, "unknown_field", "spec.gpus"),
        ({"nodes": {"min": 1, "max": 2, "most": 3}}, "unknown_field", "spec.nodes.most"),
        ({"slots_per_node": 0}, "invalid", "spec.slots_per_node"),
        ({"nodes": {"min": 3, "max": 1}}, "invalid", "the minimum is above the maximum"),
        ({"env": {"RANK": "0", "LD_PRELOAD": "x.so"}}, "env_reserved", "LD_PRELOAD, RANK"),
        (
            {"nodes": {"min": 6, "max": 6}},
            "too_large",
            f"needs 6 nodes with 1 slot each; {messages.THIS_CLUSTER_HAS.format(count=5)}",
        ),
    ],
)
async def test_what_is_wrong_with_a_submit_is_named(api, spec, code, told):
    answer = await api.ask("POST", "api/jobs", json=submission(**spec))
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == code
    assert told in answer.json()["error"]["message"]


async def test_a_body_that_is_no_json_is_told(api):
    answer = await api.ask("POST", "api/jobs", content=b"\x80pickle")
    assert answer.status_code == 422
    assert "body" in answer.json()["error"]["message"]


async def test_lists_are_ones_own_and_everyones_for_admins(api):
    mine, theirs = await api.submit(nodes=5), await api.submit("bob", nodes=5)
    await api.ask("POST", f"api/jobs/{mine.id}/stop")

    async def ids(token, **query):
        answer = await api.ask("GET", "api/jobs", token, params=query)
        return [job.id for job in JobList.model_validate_json(answer.content).jobs]

    assert await ids("ada-token") == [mine.id]
    assert await ids("ada-token", state="open") == []
    assert await ids("root-token") == []
    assert await ids("root-token", owner="all") == [theirs.id, mine.id]
    assert await ids("root-token", owner="all", limit="1") == [theirs.id]
    refused = await api.ask("GET", "api/jobs", params={"owner": "all"})
    assert refused.status_code == 403
    assert "custom:minicluster:admin" in refused.json()["error"]["message"]


async def test_a_stop_can_be_repeated(api):
    waiting = await api.submit(nodes=5)
    answers = [(await api.ask("POST", f"api/jobs/{waiting.id}/stop")).json()["state"] for _ in range(2)]
    assert answers == ["stopped", "stopped"]
    running, _, _ = await api.running()
    answers = [(await api.ask("POST", f"api/jobs/{running.id}/stop")).json()["state"] for _ in range(2)]
    assert answers == ["stopping", "stopping"]


async def test_an_admin_stops_anyones_job(api):
    job = await api.submit(nodes=5)
    answer = await api.ask("POST", f"api/jobs/{job.id}/stop", "root-token")
    assert answer.json()["state"] == "stopped"
    history = await api.ask("GET", f"api/jobs/{job.id}/history")
    assert [line["kind"] for line in history.json()["lines"]] == ["submitted", "stop-asked"]
    assert "root" in history.json()["lines"][-1]["text"]


async def test_a_log_is_read_from_any_byte(api):
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "rank-0", 0, b"one\ntwo\nthree\r")

    async def log(**query):
        return await api.ask("GET", f"api/jobs/{job.id}/log", params=query)

    whole = await log()
    assert whole.content == b"one\ntwo\nthree\r"
    assert whole.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert whole.headers["X-Content-Type-Options"] == "nosniff"
    part = await log(rank=0, offset=4, limit=3)
    assert (part.content, part.headers["Minicluster-Offset"], part.headers["Minicluster-Size"]) == (
        b"two",
        "4",
        "14",
    )
    assert (await log(offset=100)).content == b""
    assert (await log(rank=7)).content == b""
    assert (await log(attempt=9)).content == b""
    wrong = await log(offset=-1)
    assert wrong.status_code == 422
    assert "offset" in wrong.json()["error"]["message"]
    saved = await log(download=1)
    assert saved.headers["Content-Disposition"].startswith(f'attachment; filename="job-{job.id}-rank-0.log";')


async def test_a_large_log_comes_whole(api):
    job, _, _ = await api.running()
    lines = b"".join(b"line %d\n" % number for number in range(200_000))
    for start in range(0, len(lines), 2**18):
        api.context.logs.append(job.id, 1, "rank-0", start, lines[start : start + 2**18])
    assert (await api.ask("GET", f"api/jobs/{job.id}/log")).content == lines


async def test_a_result_is_there_when_the_job_succeeded_and_only_for_its_owner(api):
    job, (agent,), (run,) = await api.running()
    early = await api.ask("GET", f"api/jobs/{job.id}/result")
    assert (early.status_code, early.json()["error"]["code"]) == (404, "no_result")
    result = bytes(range(256)) * 4000
    sha256 = hashlib.sha256(result).hexdigest()
    kept = await agent.http.put(f"api/tasks/blobs/{sha256}", content=result)
    assert kept.json() == {"sha256": sha256, "size_bytes": len(result)}
    await agent.finish(run, result=kept.json())
    await api.until(job.id, "succeeded")
    assert (await api.ask("GET", f"api/jobs/{job.id}/result")).content == result
    assert (await api.ask("GET", f"api/jobs/{job.id}/result", "root-token")).status_code == 404


async def test_a_small_result_comes_within_the_report(api):
    job, (agent,), (run,) = await api.running()
    data = bytes(range(256))
    result = BlobInfo(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    await agent.finish(run, result=result, result_data=base64.b64encode(data))
    await api.until(job.id, "succeeded")
    assert (await api.ask("GET", f"api/jobs/{job.id}/result")).content == data


async def test_a_report_with_a_damaged_or_too_large_result_counts_for_nothing(start_api):
    async with start_api(result_bytes=1000) as api:
        job, (agent,), (run,) = await api.running()
        for data, name, code in (
            (b"x" * 500, b"y" * 500, "blob_damaged"),
            (b"x" * 2000, b"x" * 2000, "too_large"),
        ):
            result = BlobInfo(sha256=hashlib.sha256(name).hexdigest(), size_bytes=len(data))
            with pytest.raises(AssertionError, match=code):
                await agent.finish(run, result=result, result_data=base64.b64encode(data))
            assert api.context.blobs.size(hashlib.sha256(data).hexdigest()) is None
        assert api.context.store.job(job.id).state == "running"
        await agent.finish(run)
        await api.until(job.id, "succeeded")


async def test_nodes_tell_who_holds_which_slot(api):
    job, _, _ = await api.running(nodes=2)
    nodes = NodeList.model_validate_json((await api.ask("GET", "api/nodes", "bob-token")).content).nodes
    held = {node.name: (node.slots[0].job_id, node.slots[0].owner) for node in nodes if node.up}
    assert held == {"node-1": (job.id, "ada"), "node-2": (job.id, "ada"), "node-3": (None, None)}


async def test_a_damaged_blob_is_refused_and_not_kept(api):
    answer = await api.ask("PUT", f"api/blobs/{SHA256}", content=b"something else")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "blob_damaged")
    assert (await api.ask("HEAD", f"api/blobs/{SHA256}")).status_code == 404
    assert api.context.blobs.size(SHA256) is None


async def test_limits_of_bodies_are_told_however_the_body_comes(start_api):
    async def in_chunks():
        for _ in range(40):
            yield b"x" * 50

    async with start_api(payload_bytes=1000, request_bytes=500) as api:
        for path, method, limit in ((f"api/blobs/{SHA256}", "PUT", "1000"), ("api/jobs", "POST", "500")):
            for content in (b"x" * 2000, in_chunks()):
                answer = await api.ask(method, path, content=content)
                assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
                assert f"{limit} bytes" in answer.json()["error"]["message"]
        assert not list((api.context.blobs.path(SHA256).parent.parent / "incoming").glob("*"))


async def test_another_version_of_the_messages_is_refused(api):
    answer = await api.client("ada-token", **{"Minicluster-Wire": "99"}).get("api/jobs")
    assert answer.status_code == 426
    assert "version 1" in answer.json()["error"]["message"]
    assert answer.headers["Minicluster-Wire"] == "1"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "api/nothing", 404, "unknown_path"),
        ("DELETE", "api/jobs", 405, "method_not_allowed"),
        ("GET", "api/jobs/12x", 404, "unknown_path"),
        ("GET", "api/jobs/999999999999999", 404, "unknown_job"),
        ("GET", "api/jobs/99999999999999999999", 404, "unknown_path"),
        ("GET", "../../hub/home", 404, "unknown_path"),
    ],
)
async def test_every_error_has_the_same_shape(api, method, path, status, code):
    answer = await api.ask(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["message"]


async def test_a_defect_is_told_without_its_text(api, monkeypatch):
    def broken(*_args, **_kwargs):
        raise RuntimeError("the secret of the day")

    monkeypatch.setattr(type(api.context.store), "jobs", broken)
    answer = await api.ask("GET", "api/jobs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert "secret" not in answer.text


async def test_a_refusal_is_read_even_while_a_large_body_is_sent(api):
    for token, status in (("made-up", 401), ("reader-token", 403)):
        answer = await api.ask("PUT", f"api/blobs/{SHA256}", token, content=b"x" * 20_000_000)
        assert answer.status_code == status
