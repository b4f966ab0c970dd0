"""Invalid numbers get a 4xx answer with a reason, never a database error."""

import hashlib
import json
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from minicluster.wire import ArtifactReport, BlobInfo, TaskReport
from minicluster_hub.http_server import API, PAGES
from minicluster_hub.web.route import Scope, Who, path_parts, routes_in

from ...service.api.people.test_access import name, path_of

NUMBERS = ("job_id", "step", "reservation_id", "sweep_id", "cell_id", "model_id")
WITH_NUMBERS = [
    route
    for route in (*routes_in(API), *routes_in(PAGES))
    if any(part in path_parts(route) for part in NUMBERS)
]
QUERIES = {
    "GET api/jobs": ("limit",),
    "GET api/jobs/{job_id}/history": ("after", "limit"),
    "GET api/jobs/{job_id}/log": ("rank", "attempt", "offset", "limit"),
    "GET api/jobs/{job_id}/snapshots/{step}": ("part",),
    "GET api/jobs/{job_id}/files": ("limit",),
    "GET api/jobs/{job_id}/files/{file}": ("part",),
    "GET api/models": ("limit",),
    "GET api/runs": ("limit", "offset"),
    "GET api/runs/{job_id}/curves": ("rank", "points"),
    "GET api/runs/{job_id}/media": ("after", "limit"),
    "GET api/run-curves": ("run", "points"),
    "GET api/sweeps": ("limit",),
    "GET api/usage": ("from", "to"),
    "GET api/timeline": ("low", "high"),
    "GET api/machines/{machine_name}/history": ("low", "high", "points"),
    "GET api/runs/{job_id}/readings": ("points",),
    "DELETE api/servers/{owner}/{server}": ("place",),
}
BODIES = {route.body.__name__: route.body for route in routes_in(API) if isinstance(route.body, type)}
LARGE = (2**31, 2**53 + 1, 2**63, 2**64, 10**16, int("1" * 17), int("9" * 30), int("1" * 400))

digits = st.text("0123456789", min_size=1, max_size=60) | st.integers(min_value=0).map(str)
odd = st.sampled_from(["-1", "+1", "1e3", "1_000", "0x10", " 1", "1.0", "٣", "²", "NaN", "", "1\n"])
several = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


def token_of(route):
    if route.who is Who.SPAWNER:
        return "spawner-token"
    return "root-token" if route.scope in (Scope.ADMIN, Scope.POLICY) else "ada-token"


async def check(api, method, path, token, **more):
    answer = await api.ask(method, path, token, **more)
    assert answer.status_code < 500, (path, more, answer.text)
    return answer


@pytest.mark.parametrize("route", WITH_NUMBERS, ids=name)
@several
@example("1" * 17)
@example("9" * 15)
@example(str(2**63))
@given(told=digits)
async def test_an_id_of_any_digits_is_at_most_unknown(api, route, told):
    await check(api, route.method, path_of(route, **dict.fromkeys(NUMBERS, told)), token_of(route))


@pytest.mark.parametrize("route", [route for route in routes_in(API) if name(route) in QUERIES], ids=name)
@several
@example("0" * 17 + "9" * 30)
@example("1" * 30)
@example(str(2**53))
@given(told=digits | odd)
async def test_a_number_of_a_query_has_at_most_16_digits(api, route, told):
    job = await api.submit(nodes=5, key="one-and-the-same")
    path = path_of(route, job.id) if "{owner}" not in route.path else "api/servers/ada/-"
    for query in QUERIES[name(route)]:
        answer = await check(api, route.method, path, token_of(route), params={query: told})
        if len(told) > 16:
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")


def test_all_numbers_of_queries_are_tried():
    routes = {
        name(route) for route in routes_in(API) if any(query.kind == "integer" for query in route.query)
    }
    assert routes <= set(QUERIES)


def integers(schema, defs):
    """Yield all integer fields of a JSON schema."""
    if "$ref" in schema:
        return
    if schema.get("type") == "integer":
        yield schema
    for word in ("anyOf", "allOf", "oneOf", "prefixItems"):
        for one in schema.get(word, ()):
            yield from integers(one, defs)
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from integers(schema[word], defs)
    for one in schema.get("properties", {}).values():
        yield from integers(one, defs)


@pytest.mark.parametrize("model", BODIES.values(), ids=BODIES)
def test_each_whole_number_of_a_request_has_bounds(model):
    schema = model.model_json_schema()
    defs = schema.get("$defs", {})
    for part in (schema, *defs.values()):
        for number in integers(part, defs):
            most = number.get("maximum", number.get("exclusiveMaximum"))
            least = number.get("minimum", number.get("exclusiveMinimum"))
            assert most is not None and least is not None, (part.get("title"), number)
            assert -(2**63) < least <= most < 2**63


@pytest.mark.parametrize("number", LARGE)
async def test_a_task_reports_no_number_that_a_database_cannot_hold(api, number):
    job, (agent,), (run,) = await api.running()
    sha256 = hashlib.sha256(b"a file").hexdigest()
    for kind in ("files", "snapshots"):
        await agent.http.put(f"api/tasks/{kind}/{sha256}", content=b"a file")
    plain = TaskReport(ready=True, store_port=4000, attempt=run.attempt)
    file = ArtifactReport(path="a", part=0, blob=BlobInfo(sha256=sha256, size_bytes=6)).model_dump()
    changes = (
        {"artifacts": [{**file, "part": number}]},
        {"artifacts": [{**file, "blob": {"sha256": sha256, "size_bytes": number}}]},
        {"result": {"sha256": sha256, "size_bytes": number}},
        {"snapshots": [{"step": number, "attempt": run.attempt, "blob": file["blob"]}]},
        {"snapshots": [{"step": 1, "attempt": number, "blob": file["blob"]}]},
        {"ranks": [{"rank": number, "state": "exited"}]},
        {"chunks": [{"stream": "rank-0", "offset": number, "data": "YQ=="}]},
        {"cleared": number},
        {"attempt": number},
        {"look": number},
        {"store_port": number},
    )
    for change in changes:
        body = json.dumps({**plain.model_dump(mode="json"), **change})
        answer = await agent.http.post("api/tasks/report", content=body)
        assert answer.status_code < 500, (change, answer.text)
    assert (await api.ask("GET", f"api/jobs/{job.id}")).status_code == 200


@several
@example(timeout_s=1e308, quiet_after_s=1e308)
@given(timeout_s=st.floats(min_value=0, exclude_min=True), quiet_after_s=st.floats(min_value=0))
async def test_times_of_any_length_start_a_job(api, timeout_s, quiet_after_s):
    spec = {"payload_sha256": "a" * 64, "timeout_s": timeout_s, "quiet_after_s": quiet_after_s}
    body = json.dumps({"idempotency_key": uuid4().hex, "spec": spec}).replace("Infinity", "1e999")
    await check(api, "POST", "api/jobs", "ada-token", content=body)
    job = await api.submit(nodes=1, payload=b"a cell", timeout_s=min(timeout_s, 1e308))
    await api.agents(job.id)
    await api.ask("POST", f"api/jobs/{job.id}/stop")


def test_a_large_number_is_named_by_its_field():
    with pytest.raises(ValidationError, match="cleared"):
        TaskReport(cleared=2**64)


async def test_a_nul_in_an_address_or_a_name_does_not_reach_the_database(api):
    """PostgreSQL refuses it, and this error was treated as an unavailable database."""
    job = await api.submit("ada", nodes=5)
    for path in (f"api/jobs/{job.id}/files/a%00b", "api/about?image=a%00b", "api/data/sets/x?owner=%00"):
        answer = await api.ask("GET" if "sets" not in path else "DELETE", path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid"), path
    spec = {"payload_sha256": job_payload(), "data": [{"name": "a\0b/pets"}]}
    answer = await api.ask("POST", "api/jobs", json={"idempotency_key": "the-key-0", "spec": spec})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")


def job_payload():
    return hashlib.sha256(b"a cell").hexdigest()
