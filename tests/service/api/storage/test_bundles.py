"""Files from the notebook's folder over the API: named by a job, sent only to its tasks."""

import hashlib
from uuid import uuid4


async def put(api, data, owner="ada"):
    sha256 = hashlib.sha256(data).hexdigest()
    answer = await api.ask("PUT", f"api/blobs/{sha256}", f"{owner}-token", content=data)
    assert answer.status_code == 200, answer.text
    return sha256


async def test_a_task_gets_the_bundle_of_its_job(api):
    bundle = await put(api, b"a bundle")
    _, (agent,), (run,) = await api.running(bundle_sha256=bundle)
    assert run.bundle_sha256 == bundle
    assert (await agent.http.get(f"api/tasks/blobs/{bundle}")).content == b"a bundle"
    _, (other,), (plain,) = await api.running()
    assert plain.bundle_sha256 is None
    assert (await other.http.get(f"api/tasks/blobs/{bundle}")).status_code == 404


async def test_a_bundle_that_is_not_here_or_of_somebody_else_is_asked_for(api):
    payload, bundle = await put(api, b"a cell"), await put(api, b"bob's bundle", "bob")
    spec = {"payload_sha256": payload, "nodes": {"min": 1, "max": 1}, "bundle_sha256": bundle}
    body = {"idempotency_key": uuid4().hex, "spec": spec}
    answer = await api.ask("POST", "api/jobs", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "payload_missing")
    assert bundle in answer.json()["error"]["message"]
    await put(api, b"bob's bundle")
    assert (await api.ask("POST", "api/jobs", json=body)).status_code == 201


async def test_a_task_gets_the_parts_of_its_job_and_nobody_elses(api):
    part, other = await put(api, b"a part"), await put(api, b"another part")
    _, (agent,), (run,) = await api.running(parts=[part])
    assert run.parts == (part,)
    assert (await agent.http.get(f"api/tasks/blobs/{part}")).content == b"a part"
    assert (await agent.http.get(f"api/tasks/blobs/{other}")).status_code == 404


async def test_a_notebook_is_told_which_parts_to_send(api):
    mine, bobs = await put(api, b"mine"), await put(api, b"his", "bob")
    ask = {"sha256": [mine, bobs, "0" * 64]}
    answer = await api.ask("POST", "api/missing-blobs", json=ask)
    assert answer.json()["sha256"] == [bobs, "0" * 64]


async def test_what_a_job_was_sent_with_is_read_by_its_owner_alone(api):
    job = await api.submit(payload=b"names of a notebook", nodes=5)
    answer = await api.ask("GET", f"api/jobs/{job.id}/cell")
    assert (answer.status_code, answer.content) == (200, b"names of a notebook")
    assert answer.headers["content-type"] == "application/octet-stream"
    # An administrator may see a job, but not its owner's files.
    for token in ("bob-token", "root-token"):
        refused = await api.ask("GET", f"api/jobs/{job.id}/cell", token)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_job")


async def test_a_part_of_somebody_else_is_no_part_of_a_job_and_not_shown(api):
    payload, mine, bobs = await put(api, b"a cell"), await put(api, b"mine"), await put(api, b"his", "bob")
    spec = {"payload_sha256": payload, "parts": [mine, bobs], "nodes": {"min": 1, "max": 1}}
    body = {"idempotency_key": "key-00001", "spec": spec}
    answer = await api.ask("POST", "api/jobs", json=body)
    assert answer.status_code == 409 and bobs in answer.json()["error"]["message"]
    job = (await api.ask("POST", "api/jobs", json={**body, "spec": {**spec, "parts": [mine]}})).json()["id"]
    path = f"api/jobs/{job}/cell?part="
    assert (await api.ask("GET", path + mine)).content == b"mine"
    for other in (bobs, "../../etc/passwd"):
        assert (await api.ask("GET", path + other)).status_code == 404
    assert (await api.ask("GET", path + mine, "bob-token")).status_code == 404
