"""Messages of the largest size: all texts and lists have limits, and no error is lost for its length."""

import json
import re
import time

import pytest
from pydantic import ValidationError

from minicluster.runtime.agent.errors import ERRORS_BYTES, with_first_errors
from minicluster.wire import (
    NOTES,
    TRACEBACK_CHARS,
    JobError,
    Progress,
    RankReport,
    RankStack,
    StackFrame,
    TaskReport,
    shortened,
)
from minicluster_hub.control.progress_rates import ProgressRates
from minicluster_hub.http_server import API
from minicluster_hub.store.jobs.reports import NOTES_OF_JOB
from minicluster_hub.support.rates import Rate
from minicluster_hub.web.route import routes_in

BODIES = {route.body.__name__: route.body for route in routes_in(API) if isinstance(route.body, type)}
MIB = 1 << 20
ELSEWHERE = {
    ("JobSpec", "env"): "the reserved names and 32 KB in all are admission's to tell",
    ("DataManifest", "pieces"): "a manifest is a blob, read piece by piece",
}


BOUNDS = {"string": {"maxLength", "enum", "const"}, "array": {"maxItems"}, "object": {"maxProperties"}}


def is_bounded(schema):
    kind = schema.get("type")
    if kind == "object" and not {"additionalProperties", "patternProperties"} & set(schema):
        return True
    pattern = re.sub(r"\\.|\[[^]]*\]", "", schema.get("pattern", "*"))
    ends = kind == "string" and not re.search(r"[*+]", pattern)
    return ends or kind not in BOUNDS or BOUNDS[kind] & set(schema)


def unbounded(schema, place=""):
    """Yield the paths in a JSON schema of texts, lists and maps without a length limit."""
    if not is_bounded(schema):
        yield place
    if isinstance(schema.get("additionalProperties"), dict) and "patternProperties" not in schema:
        yield from unbounded({"type": "string", **schema.get("propertyNames", {})}, f"{place}/name")
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for one in schema.get(word, ()):
            yield from unbounded(one, place)
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from unbounded(schema[word], f"{place}/{word}")
    for name, one in {**schema.get("properties", {}), **schema.get("patternProperties", {})}.items():
        yield from unbounded(one, f"{place}.{name}")


@pytest.mark.parametrize("model", BODIES.values(), ids=BODIES)
def test_each_text_and_list_of_a_request_has_a_bound(model):
    schema = model.model_json_schema()
    parts = {model.__name__: schema, **schema.pop("$defs", {})}
    found = [
        (name, place)
        for name, part in parts.items()
        for place in unbounded(part)
        if (name, place.split(".")[1]) not in ELSEWHERE
    ]
    assert not found


def test_a_long_text_keeps_its_beginning_and_its_end():
    text = shortened("begin" + "x" * MIB + "end", 1000)
    assert len(text) <= 1000 and text.startswith("begin") and text.endswith("end")
    left_out = int(re.search(r"\.\.\. (\d+) characters left out", text)[1])
    assert left_out + len(text) - len(f"\n... {left_out} characters left out ...\n") == MIB + 8


async def post(agent, **report):
    """Send a raw report: our message classes would have shortened it."""
    return await agent.http.post("api/tasks/report", content=json.dumps({"ready": True, **report}))


async def test_a_long_error_of_an_earlier_agent_is_not_lost(api):
    job, (agent,), (run,) = await api.running()
    error = {
        "kind": "exception",
        "message": "E" * MIB,
        "traceback": f"first{'x' * MIB}last",
        "hint": "h" * MIB,
    }
    rank = {"rank": 0, "state": "exited", "exit_code": 1, "error": error}
    answer = await post(agent, attempt=run.attempt, ranks=[rank], cleared=run.attempt, store_port=4000)
    assert answer.status_code == 200, answer.text
    await api.until(job.id, "failed")
    data = (await api.ask("GET", f"api/jobs/{job.id}")).json()["error"]
    assert (
        len(data["traceback"]) <= TRACEBACK_CHARS and len(data["message"]) < 5000 and len(data["hint"]) < 5000
    )
    assert data["traceback"].startswith("first") and data["traceback"].endswith("last")


async def test_new_notes_in_each_report_fill_no_history(start_api):
    async with start_api(report_rate=Rate(1e9, 1e9)) as api:
        job, (agent,), (run,) = await api.running()
        for number in range(12):
            notes = [f"{number}-{one}-{'x' * (MIB // 10)}" for one in range(60)]
            answer = await post(agent, attempt=run.attempt, notes=notes, store_port=4000)
            assert answer.status_code == 200, answer.text
        texts = [event.text for event in api.context.store.events(job.id) if event.kind == "note"]
        assert NOTES <= len(texts) <= NOTES_OF_JOB and max(map(len, texts)) <= 2000


async def test_endings_are_few_and_short(api):
    job, (agent,), (run,) = await api.running()
    answer = await post(agent, attempt=run.attempt, ending=["x" * MIB] * 6, store_port=4000)
    assert answer.status_code == 200, answer.text
    assert len((await api.ask("GET", f"api/jobs/{job.id}")).json()["note"]) < 20_000


@pytest.mark.parametrize(
    "wrong", [{"address": "a" * MIB}, {"ranks": [{"rank": 0, "state": "pending"}] * 2000}]
)
async def test_more_than_any_agent_says_is_refused(api, wrong):
    _, (agent,), (run,) = await api.running()
    answer = await post(agent, attempt=run.attempt, **wrong)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")
    assert len(answer.text) < 1000, "the answer does not send back what was wrong"


def failed_rank(rank):
    frames = [StackFrame(file="f" * 500, line=1, function="g" * 500)] * 100
    stack = RankStack(rank=rank, sight="seen", frames=frames)
    error = JobError(
        kind="exception", message="boom", traceback="t" * MIB, stack=stack, at=1000.0 - rank, rank=rank
    )
    return RankReport(rank=rank, state="exited", exit_code=1, error=error)


def test_many_ranks_that_fail_at_once_find_room_in_a_report():
    """A report above the limit would be refused each time, and the error would be lost."""
    reports = with_first_errors([failed_rank(rank) for rank in range(256)])
    assert len(TaskReport(ranks=reports).model_dump_json()) < ERRORS_BYTES + MIB < 8 * MIB
    assert [report.rank for report in reports] == list(range(256))
    assert all(report.error and report.error.message == "boom" for report in reports)
    assert reports[255].error.traceback and reports[255].error.stack, "the first to fail is told in full"


def test_lines_that_only_look_like_records_are_not_all_tried():
    progress_rates = ProgressRates()
    few, many = b'"whole":\n' * 16, b'"whole":\n' * 100_000
    took = {}
    for data in (few, many):
        times = []
        for _ in range(20):
            began = time.perf_counter()
            progress_rates.receive(1, 1, 1, data, 0.0)
            times.append(time.perf_counter() - began)
        took[data] = min(times)  # Other samples include other load on this machine.
    assert took[many] < 50 * took[few]


@pytest.mark.parametrize("field", ["done", "total", "steps", "gradient_bytes"])
def test_a_progress_has_no_number_that_a_scheduler_cannot_divide(field):
    """An integer of 400 digits overflows a float: the scheduler would fail for all users."""
    with pytest.raises(ValidationError, match=field):
        Progress.model_validate_json(json.dumps({"done": 1, field: int("9" * 400)}))
    with pytest.raises(ValidationError, match=field):
        Progress(**{"done": 1, field: 10**300})
