"""The API of served models, and the requests to them, with simulated agents and small servers as replicas."""

import asyncio
import hashlib
import json
from uuid import uuid4

import pytest

from minicluster.wire.serving.models import ModelDetails, ModelState
from minicluster_hub.serving.automatic import AutoServing
from minicluster_hub.serving.options import ServingLimits

from ....patience import eventually
from ...serving.replicas import SIGNATURE, Replica

SIGNED = json.loads(SIGNATURE.model_dump_json())


async def submit(api, name="digits", owner="ada", key=None, payload=b"a model", **more):
    sha256, token = hashlib.sha256(payload).hexdigest(), f"{owner}-token"
    await api.ask("PUT", f"api/blobs/{sha256}", token, content=payload)
    spec = {"payload_sha256": sha256, "nodes": {"min": 1, "max": 1}}
    body = {
        "idempotency_key": key or uuid4().hex,
        "name": name,
        "spec": spec,
        "signature": SIGNED,
        "variable": "model",
        **more,
    }
    return await api.ask("POST", "api/models", token, json=body)


async def details(api, model_id, token="ada-token"):
    answer = await api.ask("GET", f"api/models/{model_id}", token)
    assert answer.status_code == 200, answer.text
    return ModelDetails.model_validate_json(answer.content)


class LiveReplica(Replica):
    """A small server that a simulated agent reports as its replica."""

    @classmethod
    async def of_job(cls, api, job_id):
        (agent,) = await api.agents(job_id)
        run = await agent.run_order()
        made = cls(f"job-{job_id}", job_id)
        made.agent, made.run, made.job_id = agent, run, job_id
        await agent.start_ranks(run)
        await api.until(job_id, "running")
        return made

    async def report(self, ready=True):
        """Report the replica. Where its task is, the service knows better than the task says."""
        await self.agent.report(
            attempt=self.run.attempt,
            address="192.0.2.1",
            ranks=({"rank": 0, "state": "started"},),
            replica={"port": self.endpoint.port, "ready": ready},
        )

    async def told_to_leave(self):
        orders = await self.agent.orders()
        while not orders.leave:
            orders = await self.agent.orders(orders.version)

    async def end(self):
        await self.agent.finish(self.run)


@pytest.fixture
async def replicas(api, monkeypatch):
    made = []

    async def start(model_id, version=1, count=1):
        """Wait for the jobs of a version's replicas, and have each answer."""
        found = await eventually(lambda: _jobs(api, model_id, version, count))
        new = [await LiveReplica.of_job(api, job_id) for job_id in found]
        made.extend(new)
        for one in new:
            monkeypatch.setattr(
                f"{Replica.__module__}.SECRET", api.context.serving.manager.secret_of(model_id)
            )
            await one.report()
        return new

    yield start
    for one in made:
        await one.die()


def _jobs(api, model_id, version, count):
    found = [one for one in api.context.store.models.replicas(model_id) if one.version == version]
    return [one.job_id for one in found] if len(found) == count else None


async def predict(api, token="ada-token", path="answers/ada/digits/predict", **headers):
    client = api.client(token, **headers)
    return await client.post(path, content=b"[[1, 2]]")


async def until_serving(api, model_id, version):
    await eventually(lambda: api.context.store.models.model(model_id).serving == version)
    await eventually(lambda: api.context.serving.front.route("ada", "digits").version == version)


async def test_a_model_is_its_owners_and_the_same_key_is_the_same_version(api):
    first = await submit(api, key="key-00001")
    again = await submit(api, key="key-00001")
    assert (first.status_code, again.status_code) == (201, 200)
    model_id = first.json()["id"]
    assert again.json()["id"] == model_id
    for token, status in (("bob-token", 404), ("root-token", 200), ("ada-token", 200)):
        for path in ("", "/events"):
            assert (await api.ask("GET", f"api/models/{model_id}{path}", token)).status_code == status
    assert (await api.ask("DELETE", f"api/models/{model_id}", "bob-token")).status_code == 404
    assert (await api.ask("GET", "api/models", "bob-token")).json()["models"] == []
    job = api.context.store.job((await eventually(lambda: _jobs(api, model_id, 1, 1)))[0])
    assert (job.spec.name, job.spec.timeout_s, job.spec.quiet_after_s) == ("digits v1", None, 0.0)
    assert (job.spec.serve.model, job.spec.serve.version) == (model_id, 1)


async def test_what_no_replica_can_be_is_refused(api):
    await submit(api)
    payload = hashlib.sha256(b"a model").hexdigest()
    for wrong in ({"session": True}, {"fault_tolerant": True}, {"slots": {"min": 1, "max": 1}}):
        answer = await submit(api, name="wrong", spec={"payload_sha256": payload, **wrong})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid"), wrong
    listed = (await api.ask("GET", "api/models")).json()["models"]
    assert [one["name"] for one in listed] == ["digits"]


async def test_a_models_page_is_its_owners(api):
    model_id = (await submit(api)).json()["id"]
    for token, path, status in (
        ("ada-token", f"models/{model_id}", 200),
        ("root-token", f"models/{model_id}", 200),
        ("bob-token", f"models/{model_id}", 404),
        ("ada-token", "models/4711", 404),
        ("ada-token", "models", 200),
    ):
        page = await api.client(token, **{"Sec-Fetch-Mode": "navigate"}).get(path)
        assert page.status_code == status, (token, path)


async def test_only_the_service_makes_replicas(api):
    model_id = (await submit(api)).json()["id"]
    job = api.context.store.job((await eventually(lambda: _jobs(api, model_id, 1, 1)))[0])
    serve = json.loads(job.spec.serve.model_dump_json())
    spec = {
        "payload_sha256": job.spec.payload_sha256,
        "nodes": {"min": 1, "max": 1},
        "ranks_per_node": 1,
        "serve": serve,
    }
    answer = await api.ask("POST", "api/jobs", json={"idempotency_key": uuid4().hex, "spec": spec})
    assert answer.status_code == 422 and "only the service" in answer.text


async def test_a_model_answers_its_owner_and_nobody_else(api, replicas):
    model_id = (await submit(api)).json()["id"]
    assert (await predict(api)).status_code == 503
    (one,) = await replicas(model_id)
    await until_serving(api, model_id, 1)
    answer = await predict(api)
    assert (answer.status_code, answer.json()) == (200, {"replica": one.name})
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert "Set-Cookie" not in answer.headers
    for token, status in (("bob-token", 404), (None, 401), ("made-up", 401), ("root-token", 200)):
        assert (await predict(api, token)).status_code == status, token
    assert (await predict(api, path="answers/ada/other/predict")).status_code == 404
    lowered = {name.lower() for _, _, headers, _ in one.requests for name in headers}
    assert not lowered & {"authorization", "cookie"}
    shown = (await details(api, model_id)).model
    assert (shown.state, shown.ready) == (ModelState.SERVING, 1)
    assert (shown.figures.requests, shown.figures.errors) == (3, 1), "before the replica there was none"


async def test_a_shared_model_answers_all_users_and_an_open_one_everybody(start_api):
    async with start_api(models=ServingLimits(open_allowed=True)) as api:
        for flags, statuses in (
            ({"shared": True}, {"bob-token": 503, None: 401}),
            ({"is_open": True}, {"bob-token": 503, None: 503}),
        ):
            await submit(api, name="digits", **flags)
            await eventually(lambda: api.context.serving.front.route("ada", "digits"))
            await eventually(
                lambda flags=flags: (
                    (found := api.context.serving.front.route("ada", "digits"))
                    and all(getattr(found, name) for name in flags)
                )
            )
            for token, status in statuses.items():
                assert (await predict(api, token)).status_code == status, (flags, token)


async def test_an_owner_opens_a_model_only_if_the_administrator_lets_it(api):
    refused = await submit(api, is_open=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "open_models_off")
    model_id = (await submit(api)).json()["id"]
    answer = await api.ask("PATCH", f"api/models/{model_id}", json={"is_open": True})
    assert answer.status_code == 403


async def test_open_models_need_a_token_again_when_the_administrator_wants_it(start_api):
    async with start_api(models=ServingLimits(open_allowed=True)) as api:
        model_id = (await submit(api, is_open=True)).json()["id"]
        await eventually(lambda: api.context.serving.front.route("ada", "digits"))
        assert (await predict(api, None)).status_code == 503
    async with start_api() as api:
        await eventually(lambda: api.context.serving.front.route("ada", "digits"))
        assert (await predict(api, None)).status_code == 401
        assert not (await details(api, model_id)).model.is_open


async def test_an_owner_has_so_many_replicas_and_no_more(start_api):
    async with start_api(models=ServingLimits(replicas=3)) as api:
        assert (await submit(api, name="one", replicas=2)).status_code == 201
        refused = await submit(api, name="two", replicas=2)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "too_many_replicas")
        model_id = (await submit(api, name="two")).json()["id"]
        answer = await api.ask("PATCH", f"api/models/{model_id}", json={"replicas": 2})
        assert answer.status_code == 422


async def test_a_new_version_takes_over_when_it_answers_and_the_old_one_drains(api, replicas):
    model_id = (await submit(api)).json()["id"]
    (old,) = await replicas(model_id)
    await until_serving(api, model_id, 1)
    assert (await submit(api, payload=b"better")).json()["active"] == 2
    (job_id,) = await eventually(lambda: _jobs(api, model_id, 2, 1))
    assert (await predict(api)).json() == {"replica": old.name}
    (new,) = await replicas(model_id, 2)
    await until_serving(api, model_id, 2)
    assert (await predict(api)).json() == {"replica": new.name}
    await old.told_to_leave()
    await old.end()
    await eventually(lambda: len(api.context.store.models.replicas(model_id)) == 1)
    kinds = [one["kind"] for one in (await api.ask("GET", f"api/models/{model_id}/events")).json()["events"]]
    assert kinds == ["serving", "version", "serving", "version"]
    assert job_id == new.job_id


async def test_back_is_a_change_to_the_former_version(api, replicas):
    model_id = (await submit(api)).json()["id"]
    (old,) = await replicas(model_id)
    await until_serving(api, model_id, 1)
    await submit(api, payload=b"better")
    (new,) = await replicas(model_id, 2)
    await until_serving(api, model_id, 2)
    await old.told_to_leave()
    await old.end()
    await eventually(lambda: not _jobs(api, model_id, 1, 1))
    answer = await api.ask("PATCH", f"api/models/{model_id}", json={"active_version": 1})
    assert answer.json()["active"] == 1
    (again,) = await replicas(model_id, 1)
    await until_serving(api, model_id, 1)
    assert (await predict(api)).json() == {"replica": again.name}
    await new.told_to_leave()
    unknown = await api.ask("PATCH", f"api/models/{model_id}", json={"active_version": 7})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (409, "unknown_version")


async def test_a_version_that_does_not_come_up_leaves_the_one_before(api, replicas):
    model_id = (await submit(api)).json()["id"]
    (old,) = await replicas(model_id)
    await until_serving(api, model_id, 1)
    await submit(api, payload=b"broken")
    for _ in range(3):
        await fail(api, model_id, 2)
    await eventually(lambda: api.context.store.models.model(model_id).active == 1)
    found = await details(api, model_id)
    assert (found.model.state, found.model.serving) == (ModelState.SERVING, 1)
    assert "no such layer" in found.versions[0].error
    assert (await predict(api)).json() == {"replica": old.name}


async def fail(api, model_id, version, message="ValueError: no such layer"):
    """Have the replica of a version end before it answers."""
    (job_id,) = await eventually(lambda: _jobs(api, model_id, version, 1))
    (agent,) = await api.agents(job_id)
    run = await agent.run_order()
    error = {"kind": "exception", "message": message, "rank": 0, "at": 1.0}
    ranks = ({"rank": 0, "state": "exited", "exit_code": 1, "error": error},)
    await agent.report(attempt=run.attempt, ranks=ranks, cleared=run.attempt)
    await api.until(job_id, "failed")
    await eventually(lambda: _jobs(api, model_id, version, 1) != [job_id])


async def test_a_version_that_failed_is_tried_again_when_its_owner_wants_it(api):
    model_id = (await submit(api)).json()["id"]
    for _ in range(3):
        await fail(api, model_id, 1)
    found = await details(api, model_id)
    assert (found.model.state, found.replicas) == (ModelState.FAILING, ())
    assert (await api.ask("PATCH", f"api/models/{model_id}", json={"active_version": 1})).status_code == 200
    await eventually(lambda: _jobs(api, model_id, 1, 1))
    assert (await details(api, model_id)).model.state is ModelState.STARTING


async def test_a_version_that_failed_is_tried_again_later(api, monkeypatch):
    monkeypatch.setattr("minicluster_hub.serving.manager._REST_S", 0.2)
    model_id = (await submit(api)).json()["id"]
    for _ in range(4):
        await fail(api, model_id, 1)


async def test_a_replica_that_ends_is_replaced(api, replicas):
    model_id = (await submit(api)).json()["id"]
    (one,) = await replicas(model_id)
    await until_serving(api, model_id, 1)
    error = {"kind": "signal", "message": "killed", "rank": 0, "at": 1.0}
    ranks = ({"rank": 0, "state": "exited", "exit_code": -9, "error": error},)
    await one.agent.report(attempt=one.run.attempt, ranks=ranks, cleared=one.run.attempt)
    await api.until(one.job_id, "failed")
    (job_id,) = await eventually(
        lambda: (found := _jobs(api, model_id, 1, 1)) and found != [one.job_id] and found
    )
    assert job_id != one.job_id
    assert (await predict(api)).status_code == 503
    (again,) = await replicas(model_id)
    await eventually(lambda: api.context.serving.front.route("ada", "digits").endpoints)
    assert (await predict(api)).json() == {"replica": again.name}


async def test_a_dead_replica_s_request_is_asked_of_another(api, replicas):
    model_id = (await submit(api, replicas=2)).json()["id"]
    one, other = await replicas(model_id, count=2)
    await eventually(lambda: len(api.context.serving.front.route("ada", "digits").endpoints) == 2)
    await one.die()
    names = {(await predict(api)).json()["replica"] for _ in range(4)}
    assert names == {other.name}


async def test_replicas_are_more_or_fewer_as_asked(api, replicas):
    model_id = (await submit(api)).json()["id"]
    (one,) = await replicas(model_id)
    await until_serving(api, model_id, 1)
    await api.ask("PATCH", f"api/models/{model_id}", json={"replicas": 2})
    await eventually(lambda: _jobs(api, model_id, 1, 2))
    await api.ask("PATCH", f"api/models/{model_id}", json={"replicas": 1})
    await eventually(lambda: _jobs(api, model_id, 1, 1))
    assert _jobs(api, model_id, 1, 1) == [one.job_id], "the one that answers stays"


async def test_a_stopped_model_ends_and_its_name_is_free(api, replicas):
    model_id = (await submit(api)).json()["id"]
    (one,) = await replicas(model_id)
    await until_serving(api, model_id, 1)
    answer = await api.ask("DELETE", f"api/models/{model_id}")
    assert answer.json()["state"] == "stopping"
    await one.told_to_leave()
    await one.end()
    await eventually(lambda: api.context.store.models.model(model_id).ended_at)
    assert (await details(api, model_id)).model.state is ModelState.STOPPED
    assert (await predict(api)).status_code == 404
    assert (await submit(api)).json()["id"] != model_id
    gang_targets = [gang.target for gang in api.context.store.open_state().gangs if gang.job_id is None]
    assert "keep" not in gang_targets, "a replica's gang is not kept warm"


async def test_a_better_jobs_model_is_served_by_itself(api, replicas):
    auto = {"metric": "val_acc", "maximize": True}
    model_id = (await submit(api, auto=auto, value=0.9)).json()["id"]
    await replicas(model_id)
    await until_serving(api, model_id, 1)
    for value, wanted in ((0.8, 1), (0.95, 2), (0.94, 2)):
        await _trained(api, value)
        await asyncio.sleep(0.2)
        await eventually(lambda wanted=wanted: api.context.store.models.model(model_id).active == wanted)
    version = api.context.store.models.version(model_id, 2)
    assert "val_acc = 0.95, before 0.9" in version.reason
    assert version.spec.serve.trained_by is not None
    events = (await api.ask("GET", f"api/models/{model_id}/events")).json()["events"]
    assert any("is better" in one["text"] for one in events)


async def test_a_job_that_ended_while_no_service_looked_is_served_all_the_same(start_api, monkeypatch):
    async def looked_away(*_):
        return set()

    async with start_api() as api:
        monkeypatch.setattr(AutoServing, "consider", looked_away)
        auto = {"metric": "val_acc", "maximize": True}
        model_id = (await submit(api, auto=auto, value=0.9)).json()["id"]
        job_id = await _trained(api, 0.95)
        await eventually(lambda: api.context.store.runs.records([job_id])[job_id].metrics)
    monkeypatch.undo()
    async with start_api() as api:
        await eventually(lambda: api.context.store.models.model(model_id).active == 2)


async def test_a_job_from_before_a_version_that_its_owner_sent_does_not_replace_it(start_api):
    async with start_api() as api:
        auto = {"metric": "val_acc", "maximize": True}
        model_id = (await submit(api, auto=auto, value=0.9)).json()["id"]
        await _trained(api, 0.8)
        assert (await submit(api, payload=b"by hand")).json()["active"] == 2
    async with start_api() as api:
        job_id = await _trained(api, 0.1)
        version = await eventually(lambda: api.context.store.models.version(model_id, 3))
        assert version.spec.serve.trained_by.job_id == job_id


async def test_values_of_one_metric_are_not_compared_with_those_of_another(api):
    model_id = (await submit(api, auto={"metric": "val_acc", "maximize": True}, value=0.9)).json()["id"]

    def values():
        return [one.value for one in api.context.store.models.versions(model_id)]

    for change, kept in (
        ({"auto": {"metric": "val_acc"}}, [0.9]),
        ({"auto": {"metric": "loss"}}, [None]),
    ):
        answer = await api.ask("PATCH", f"api/models/{model_id}", json=change)
        assert (answer.status_code, values()) == (200, kept)
    for metric, value, kept in (("loss", 0.5, [0.5, None]), ("f1", 0.7, [0.7, None, None])):
        await submit(api, payload=metric.encode(), auto={"metric": metric}, value=value)
        assert values() == kept


async def test_a_job_that_left_no_model_costs_one_replica(api, replicas):
    auto = {"metric": "val_acc", "maximize": True}
    model_id = (await submit(api, auto=auto, value=0.9)).json()["id"]
    await replicas(model_id)
    await until_serving(api, model_id, 1)
    job_id = await _trained(api, 0.95)
    await fail(api, model_id, 2, f"NotServable: job {job_id} made or changed no 'model'")
    await eventually(lambda: api.context.store.models.model(model_id).active == 1)
    events = (await api.ask("GET", f"api/models/{model_id}/events")).json()["events"]
    assert [one["kind"] for one in events[:2]] == ["fell-back", "replica-failed"]
    assert api.context.store.models.count_replicas(model_id) == 2


async def _trained(api, value):
    """Run a job that logs a metric and has a result; return its id."""
    job, (agent,), (run,) = await api.running()
    line = f'{{"kind":"log","rank":0,"at":1.0,"step":1,"values":{{"val_acc":{value}}}}}\n'.encode()
    await agent.say(run, "records", 0, line)
    result = f"the result {value}".encode()
    sha256 = hashlib.sha256(result).hexdigest()
    blob = {"sha256": sha256, "size_bytes": len(result)}
    put = await agent.http.put(f"api/tasks/blobs/{sha256}", content=result)
    assert put.status_code in (200, 201), put.text
    await agent.finish(run, result=blob)
    await api.until(job.id, "succeeded")
    return job.id


async def test_a_model_says_what_it_takes(api, replicas):
    model_id = (await submit(api)).json()["id"]
    await replicas(model_id)
    await until_serving(api, model_id, 1)
    answer = await api.client("ada-token").get("answers/ada/digits/openapi.json")
    assert answer.status_code == 200, answer.text
    paths = answer.json()["paths"]
    assert {"/predict", "/v2/models/digits/infer"} <= set(paths)
    schema = paths["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["items"] == {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}


async def test_a_request_that_is_too_long_is_refused(api, replicas):
    model_id = (await submit(api, options={"request_bytes": 1024})).json()["id"]
    await replicas(model_id)
    await until_serving(api, model_id, 1)
    answer = await api.client("ada-token").post("answers/ada/digits/predict", content=b"x" * 2000)
    assert answer.status_code == 413
    refused = await submit(api, name="large", options={"request_bytes": 1 << 30})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "request_too_long")
