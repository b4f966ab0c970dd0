"""A replica of a served model: LitServe in a real rank, which the agent starts, lets leave, and loses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import psutil
import pytest

from minicluster.wire import ErrorKind
from minicluster.wire.serving.replicas import (
    ReplicaOf,
    ReplicaOptions,
    Signature,
    TensorSpec,
    TensorType,
    ValueKind,
)

from ..cluster import Cluster, Run
from .divided_model import some_in_gate

pytest.importorskip("litserve")

SECRET = "the-secret-of-this-model"
_NUMBERS = TensorSpec(name="input", datatype=TensorType.FP32, shape=(-1, 2))
SIGNATURE = Signature(
    input_kind=ValueKind.TENSOR,
    output_kind=ValueKind.TENSOR,
    inputs=(_NUMBERS,),
    outputs=(_NUMBERS.model_copy(update={"name": "output"}),),
    batched=True,
)
MODEL = """
import sys, time
from fastapi import HTTPException
def double(x):
    print("asked", x[0, 0].item())
    if x[0, 0] == 1:
        raise ValueError("the owner's own words")
    if x[0, 0] == 2:
        raise HTTPException(422, "no twos")
    if x[0, 0] == 3:
        sys.exit("again the owner's")
    if x[0, 0] == 4:
        time.sleep(3)
    if x[0, 0] == 5:
        time.sleep(600)
    return x / 0 if x[0, 0] == 6 else 2 * x
double
"""
OTHERS = pytest.mark.full("in the gate two others cannot be loaded")
LOADING = "import time\nprint('loading')\ntime.sleep(600)\nprint"


async def start(cluster: Cluster, source: str, **options: float) -> Run:
    serve = ReplicaOf(
        model=1, name="double", version=3, signature=SIGNATURE, options=ReplicaOptions.model_validate(options)
    )
    return await cluster.run(source, nodes=1, serve=serve, serve_secret=SECRET)


@asynccontextmanager
async def answering(cluster: Cluster, **options: float) -> AsyncIterator[tuple[httpx.AsyncClient, Run]]:
    """Start a replica; yield a client of it once it answers."""
    run = await start(cluster, MODEL, **options)
    (task,) = run.attempt.tasks

    def ready() -> bool:
        return task.report.attempt == run.attempt.id and task.report.replica is not None

    await cluster.service.until(lambda: ready() or run.attempt.failed)
    assert task.report.replica is not None, run.errors()
    url = f"http://127.0.0.1:{task.report.replica.port}"
    async with httpx.AsyncClient(base_url=url, headers={"Minicluster-Replica": SECRET}, timeout=60) as http:
        yield http, run


async def let_leave(cluster: Cluster, run: Run) -> None:
    (task,) = run.attempt.tasks
    await cluster.service.order(task, task.orders.run, leave=True)


async def ask(http: httpx.AsyncClient, first: float) -> tuple[int, object]:
    answer = await http.post("/predict", json=[[first, 0]])
    return answer.status_code, answer.json()


async def test_it_answers_in_both_ways_and_hides_the_models_errors(cluster: Cluster) -> None:
    async with answering(cluster) as (http, run):
        assert await ask(http, 7) == (200, [[14.0, 0.0]])
        await _speaks_the_protocol(http)
        await _refuses(http)
        await _answers_in_one_write(http)
        status, said = await ask(http, 1)
        assert status == 500 and "the model failed" in str(said) and "words" not in str(said)
        assert await ask(http, 2) == (422, {"error": "no twos"})
        assert (await ask(http, 3))[0] == 500
        status, said = await ask(http, 6)
        assert status == 500 and "cannot be sent" in str(said)
        assert await ask(http, 8) == (200, [[16.0, 0.0]]), "it goes on"
        await cluster.service.until(lambda: "asked 8.0" in run.attempt.text(0))
        assert "the owner's own words" in run.attempt.text(0)
        await let_leave(cluster, run)
        assert (await run.over()).succeeded, run.errors()


async def _speaks_the_protocol(http: httpx.AsyncClient) -> None:
    for path, body in (
        ("", {"name": "minicluster", "version": "2", "extensions": ["binary_tensor_data"]}),
        ("/health/live", {"live": True}),
        ("/health/ready", {"live": True, "ready": True}),
        ("/models/double/ready", {"name": "double", "ready": True}),
    ):
        assert (await http.get(f"/v2{path}")).json() == body
    about = (await http.get("/v2/models/double/versions/3")).json()
    assert (about["versions"], about["inputs"]) == (["3"], [_NUMBERS.model_dump(mode="json")])
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 2], "data": [7, 8]}
    asked = {"id": "a", "inputs": [tensor], "parameters": {"binary_data_output": True}}
    answer = await http.post("/v2/models/double/infer", json=asked)
    json_bytes = int(answer.headers["Inference-Header-Content-Length"])
    assert len(answer.content) == json_bytes + 8
    assert b'"id":"a"' in answer.content[:json_bytes]


async def _answers_in_one_write(http: httpx.AsyncClient) -> None:
    """Nothing can be lost between an answer's head and its body: who has read one has read all of it."""
    assert http.base_url.port is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
    for _ in range(50):
        writer.write(
            b"POST /predict HTTP/1.1\r\nHost: replica\r\nMinicluster-Replica: "
            + SECRET.encode()
            + b"\r\nContent-Length: 7\r\n\r\n[[7,0]]"
        )
        assert (await reader.read(1 << 16)).endswith(b"\r\n\r\n[[14.0,0.0]]")
    writer.close()
    await writer.wait_closed()


async def _refuses(http: httpx.AsyncClient) -> None:
    """All refusals are JSON of one form, and nothing of LitServe's own is there."""
    for method, path, content, status in (
        ("POST", "/predict", b"[[1, 2, 3]]", 400),
        ("POST", "/predict", b"{", 400),
        ("POST", "/predict", b"[[" + b"1," * (5 << 20) + b"1]]", 413),
        ("POST", "/v2/models/double/infer", b"{}", 400),
        ("POST", "/v2/models/other/infer", b"{}", 404),
        ("GET", "/v2/models/double/versions/2", b"", 404),
        ("GET", "/predict", b"", 405),
        ("GET", "/v2/health/live/", b"", 404),
        *(("GET", path, b"", 404) for path in ("/", "/health", "/info", "/docs", "/openapi.json")),
    ):
        answer = await http.request(method, path, content=content)
        assert (answer.status_code, [*answer.json()]) == (status, ["error"]), path
    for secret in ("", "another"):
        refused = await http.get("/v2", headers={"Minicluster-Replica": secret})
        assert refused.status_code == 403


async def test_it_answers_what_it_has_before_it_leaves(cluster: Cluster) -> None:
    async with answering(cluster) as (http, run):
        slow = asyncio.create_task(ask(http, 4))
        await cluster.service.until(lambda: "asked 4.0" in run.attempt.text(0))
        await let_leave(cluster, run)
        async with asyncio.timeout(30):
            while (answer := await http.get("/v2")).status_code == 200:
                pass
        assert answer.status_code == 503
        assert await slow == (200, [[8.0, 0.0]])
        assert (await run.over()).succeeded, run.errors()


@pytest.mark.full("in the gate it answers what it has before it leaves")
async def test_it_does_not_wait_longer_than_a_request_may_take(cluster: Cluster) -> None:
    async with answering(cluster, timeout_s=3) as (http, run):
        endless = asyncio.create_task(ask(http, 5))
        await cluster.service.until(lambda: "asked 5.0" in run.attempt.text(0))
        await let_leave(cluster, run)
        assert (await run.over()).succeeded, run.errors()
        await asyncio.gather(endless, return_exceptions=True)


async def test_when_its_model_is_killed_open_requests_break_at_once(cluster: Cluster) -> None:
    async with answering(cluster) as (http, run):
        endless = asyncio.create_task(ask(http, 5))
        await cluster.service.until(lambda: "asked 5.0" in run.attempt.text(0))
        for pid in cluster.processes(0):
            if "--multiprocessing-fork" in psutil.Process(pid).cmdline():
                psutil.Process(pid).kill()
        with pytest.raises(httpx.TransportError):
            await asyncio.wait_for(endless, 30)
        assert "the process of the model was ended by signal 9" in (await run.culprit()).message


@pytest.mark.full("in the gate its model is killed")
async def test_a_model_that_hangs_is_ended_and_its_log_says_where_it_was(cluster: Cluster) -> None:
    async with answering(cluster, timeout_s=1) as (http, run):
        with pytest.raises(httpx.TransportError):
            await ask(http, 5)
        assert "the model hangs" in (await run.culprit()).message
        assert "in double" in run.attempt.text(0)


@pytest.mark.parametrize("batch", some_in_gate([1, 4], [1]))
async def test_a_stop_is_no_failure_of_its_model(cluster: Cluster, batch: int) -> None:
    async with answering(cluster, batch=batch) as (http, run):
        assert await ask(http, 7) == (200, [[14.0, 0.0]])
        await run.stop()
        assert await _ended_by_the_stop(run)


@pytest.mark.full("in the gate one that answers is stopped")
async def test_a_stop_while_it_loads_is_no_failure_either(cluster: Cluster) -> None:
    run = await start(cluster, LOADING)
    await cluster.service.until(lambda: "loading" in run.attempt.text(0))
    await run.stop()
    assert await _ended_by_the_stop(run)


async def _ended_by_the_stop(run: Run) -> bool:
    error = await run.culprit()
    return (error.kind, error.message) == (ErrorKind.SIGNAL, "Rank 0 was ended: the job was stopped.")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise OSError('no such file: weights.bin')\nx", "OSError: no such file: weights.bin"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\nx", "was ended by signal 9"),
        pytest.param("x = 1", "has no value that could be served", marks=OTHERS),
        pytest.param("7", "A int cannot be called", marks=OTHERS),
    ],
)
async def test_a_model_that_cannot_be_loaded_says_why(cluster: Cluster, source: str, told: str) -> None:
    run = await start(cluster, source)
    assert told in (await run.culprit()).message


async def test_it_leaves_while_it_loads(cluster: Cluster) -> None:
    run = await start(cluster, LOADING)
    await cluster.service.until(lambda: "loading" in run.attempt.text(0))
    await let_leave(cluster, run)
    assert (await run.over()).succeeded, run.errors()
