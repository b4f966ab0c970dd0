"""%serve in a notebook's shell: real agents, LitServe in real ranks, HAProxy where it is installed."""

import threading
from collections import Counter
from contextlib import contextmanager, suppress

import httpx
import numpy as np
import psutil
import pytest

from minicluster.client.connection import ServiceError
from minicluster.serving.calls import ModelCalls
from minicluster.serving.example import ExampleFailed
from minicluster.serving.submission import ModelFailed
from minicluster.wire import JobState
from minicluster.wire.serving.models import ModelState

from ...patience import WITHIN_S, until
from ...processes import runs

pytest.importorskip("litserve")

DEFINED = """
import torch
class Scale(torch.nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = torch.nn.Parameter(torch.tensor(float(by)))
    def forward(self, x):
        return x * self.by
model = Scale(2)
x = torch.ones(1, 3)
"""
FOR_BEST = "%%distribute --nodes 1 --plain\nimport minicluster as mc\nbest.by.data += 4"
TOKEN = {"Authorization": "Bearer ada-token"}


@pytest.fixture
def serve(notebook, service):
    """Serve a model of a name that ends with the test."""
    notebook.run(DEFINED)

    def run(line="model --name scaled --example x"):
        return notebook.run(f"%serve {line}")

    yield run
    for model in notebook.run("%serve list").rows:
        if model[1] not in ("stopping", "stopped"):
            notebook.run(f"%serve stop {model[0]}")
    until(lambda: all(row[1] == "stopped" for row in notebook.run("%serve list").rows), 3 * WITHIN_S)


def ask(live, value, path="predict", **more):
    return httpx.post(f"{live.url}{path}", json=value, headers=TOKEN, timeout=WITHIN_S, **more)


@contextmanager
def asked_on_and_on(live):
    """Four clients ask the model meanwhile. Yields what they found, each with its count."""
    outcomes, over = Counter(), threading.Event()

    def client():
        with httpx.Client(timeout=WITHIN_S, headers=TOKEN) as http:
            while not over.is_set():
                try:
                    answer = http.post(f"{live.url}predict", json=[[1, 1, 1]])
                    outcomes[f"{answer.status_code} {answer.text}"] += 1
                except httpx.HTTPError as error:
                    outcomes[repr(error)] += 1

    clients = [threading.Thread(target=client) for _ in range(4)]
    for one in clients:
        one.start()
    try:
        yield outcomes
    finally:
        over.set()
        for one in clients:
            one.join()


def test_a_model_of_the_notebook_answers_over_http(serve, notebook, capsys):
    live = serve()
    assert live.state is ModelState.SERVING
    assert live.predict([[1, 2, 3]]) == [[2.0, 4.0, 6.0]]
    answer = ask(live, [[1.5, 0, 0]])
    assert (answer.status_code, answer.json()) == (200, [[3.0, 0.0, 0.0]])
    assert httpx.post(f"{live.url}predict", json=[[1, 2, 3]]).status_code == 401
    wrong = ask(live, [[1, 2]])
    assert wrong.status_code == 400 and "the shape [1, 2]" in wrong.json()["error"]
    with pytest.raises(ServiceError, match=r"scaled: input has the shape \[1, 2\]"):
        live.predict([[1, 2]])
    assert "replicas answer" in capsys.readouterr().out
    assert notebook.run("%serve list").rows[0][:4] == ("scaled", "serving", "1", "1 of 1")
    text = repr(live)
    assert "curl" in text and live.url in text
    assert "<details>" in live._repr_html_()


@pytest.mark.full("tests/runtime/rank/test_replica has the protocol without the way there")
def test_it_speaks_the_open_inference_protocol(serve):
    live = serve()
    base = live.url
    assert httpx.get(f"{base}v2/health/ready", headers=TOKEN).status_code == 200
    about = httpx.get(f"{base}v2/models/scaled", headers=TOKEN).json()
    assert about["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 3]}]
    tensor = {"name": "input", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}
    answer = ask(live, {"id": "7", "inputs": [tensor]}, "v2/models/scaled/infer").json()
    assert answer["id"] == "7" and answer["model_version"] == "1"
    assert answer["outputs"] == [
        {"name": "output", "datatype": "FP32", "shape": [2, 3], "data": [2, 4, 6, 8, 10, 12]}
    ]
    assert ask(live, {"inputs": []}, "v2/models/scaled/infer").status_code == 400
    assert ask(live, {"inputs": [tensor]}, "v2/models/other/infer").status_code == 404
    document = httpx.get(f"{base}openapi.json", headers=TOKEN).json()
    assert "/v2/models/scaled/infer" in document["paths"]


@pytest.mark.full("tests/runtime/rank/test_replica has the protocol without the way there")
def test_a_client_made_for_the_protocol_needs_the_address_and_a_token(serve):
    triton = pytest.importorskip("tritonclient.http")
    address = serve().url.partition("://")[2].rstrip("/")
    given = triton.InferInput("input", [2, 3], "FP32")
    given.set_data_from_numpy(np.ones((2, 3), np.float32))
    headers = dict(TOKEN)  # the client writes into it
    with triton.InferenceServerClient(address) as client:
        assert client.is_server_live(headers=headers) and client.is_model_ready("scaled", headers=headers)
        assert client.get_model_metadata("scaled", headers=headers)["versions"] == ["1"]
        found = client.infer("scaled", [given], headers=headers)
    assert found.as_numpy("output").tolist() == [[2.0] * 3] * 2


def test_a_replica_answers_the_front_alone(serve, cluster):
    serve()
    found = set()
    for port in _listening(cluster):
        with suppress(httpx.HTTPError):
            answer = httpx.post(f"http://127.0.0.1:{port}/predict", json=[[1, 2, 3]], timeout=2)
            found.add((answer.status_code, answer.text))
    assert found == {(403, '{"error": "this address is for the front of the cluster alone"}')}


def _listening(cluster):
    """Return the ports where the processes of tasks listen."""
    processes = [one for task in cluster.tasks() for one in (task, *task.children(recursive=True))]
    for process in processes:
        with suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    yield connection.laddr.port


def test_the_example_is_run_before_anything_is_sent(serve, notebook, service):
    before = len(service.jobs())
    notebook.run("wrong = 'no tensor'")
    failed = notebook.fails("%serve model --name scaled --example wrong", ExampleFailed)
    assert "fails on its example" in failed.message
    assert len(service.jobs()) == before


@pytest.mark.full("in the gate four requests are one batch")
def test_a_function_with_batches_answers_many_at_once(serve, notebook):
    notebook.run(
        "import numpy as np\nsizes = []\ndef double(a):\n    return a * 2 + 0 * len(a)\ny = np.ones((1, 2))"
    )
    live = serve("double --example y --batch 8 --batch-wait 20ms")
    found = []
    with httpx.Client(timeout=WITHIN_S) as http:

        def one(number):
            answer = http.post(f"{live.url}predict", json=[[number, 0]], headers=TOKEN)
            found.append((number, answer.status_code, answer.json()))

        threads = [threading.Thread(target=one, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == [(number, 200, [[2.0 * number, 0.0]]) for number in range(24)]


@pytest.mark.full("tests/unit/serving/test_line has it without HTTP")
def test_one_bad_request_of_a_batch_fails_alone(serve, notebook):
    notebook.run(
        "def picky(a):\n    if (a < 0).any():\n        raise ValueError('negative')\n    return a\ny = x"
    )
    live = serve("picky --example y --batch 4 --batch-wait 50ms")
    results = {}

    def one(number):
        results[number] = ask(live, [[number, 0, 0]]).status_code

    threads = [threading.Thread(target=one, args=(number,)) for number in (-1, 1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {-1: 500, 1: 200, 2: 200, 3: 200}
    assert "negative" not in ask(live, [[-1, 0, 0]]).text, "what the model says is for its owner"


@pytest.mark.full("tests/service/api/jobs/test_models has the change; bench/serve counts what it drops")
def test_a_new_version_and_back_drop_no_request(serve, notebook):
    live = serve("model --name scaled --example x --timeout 20s")
    with asked_on_and_on(live) as outcomes:
        notebook.run("model = Scale(3)")
        serve()
        assert live.predict([[1, 1, 1]]) == [[3.0, 3.0, 3.0]]
        notebook.run("%serve back scaled")
        until(lambda: live.version == 1, 3 * WITHIN_S)
        assert live.predict([[1, 1, 1]]) == [[2.0, 2.0, 2.0]]
    assert set(outcomes) == {"200 [[2.0,2.0,2.0]]", "200 [[3.0,3.0,3.0]]"}
    versions = notebook.run("%serve versions scaled")
    assert [row[0] for row in versions.rows] == ["2", "1"]


def test_a_killed_replica_loses_no_request_and_is_replaced(serve, cluster):
    live = serve("model --name scaled --example x --replicas 2")
    with asked_on_and_on(live) as outcomes:
        until(lambda: outcomes["200 [[2.0,2.0,2.0]]"] > 50)
        victim = live.details.replicas[0].job_id
        _kill_replica(cluster, live, victim)
        until(lambda: victim not in {one.job_id for one in live.details.replicas}, 3 * WITHIN_S)
        until(lambda: live.details.model.ready == 2, 3 * WITHIN_S)
    assert set(outcomes) == {"200 [[2.0,2.0,2.0]]"}


def _kill_replica(cluster, live, job_id):
    """Kill all processes of a replica but its agent and zygote, as the kernel does when memory is short."""
    node = next(one.node for one in live.details.replicas if one.job_id == job_id)
    for process in list(cluster.tasks()):
        with suppress(psutil.Error):
            is_zygote = runs(process, "minicluster.runtime.rank.zygote")
            if not is_zygote or process.environ()["MINICLUSTER_NODE"] != node:
                continue
            # The other child is the store, which has no children of its own.
            for rank in [child for child in process.children() if child.children()]:
                for one in (rank, *rank.children(recursive=True)):
                    one.kill()


@pytest.mark.full("in the gate the service and the rank have it apart")
def test_a_model_that_cannot_be_loaded_says_why_and_the_old_one_goes_on(serve, notebook):
    live = serve()
    notebook.run(
        "import os\nclass Hidden(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "    def forward(self, x):\n        return x\n"
        "    def __setstate__(self, state):\n        raise OSError('no such file: weights.bin')\n"
        "model = Hidden()"
    )
    failed = notebook.fails("%serve model --name scaled --example x", ModelFailed)
    assert "weights.bin" in failed.message
    assert live.predict([[1, 1, 1]]) == [[2.0, 2.0, 2.0]]
    assert "weights.bin" in repr(notebook.run("%serve versions scaled"))


def test_replicas_outlive_the_service(serve, cluster):
    live = serve()
    cluster.kill()
    cluster.start()

    def answers():
        with suppress(ServiceError):
            return live.predict([[1, 1, 1]]) == [[2.0, 2.0, 2.0]]
        return False

    until(answers)
    assert len({one.job_id for one in live.details.replicas}) == 1


@pytest.mark.full("tests/service/api/jobs/test_models has it with replicas of the test's own")
def test_a_better_job_is_served_by_itself(serve, notebook, service):
    notebook.run("best = Scale(1)")
    live = serve("best --name best --example x --auto score:max --value 1")
    assert live.predict([[1, 1, 1]]) == [[1.0, 1.0, 1.0]]
    notebook.run(f"{FOR_BEST}\nmc.log(step=1, score=5.0)")
    until(lambda: live.version == 2, 4 * WITHIN_S)
    assert live.predict([[1, 1, 1]]) == [[5.0, 5.0, 5.0]]
    version = live.versions[0]
    assert "score = 5, before 1" in version.reason and version.trained_by
    for score in (2.0, 6.0):
        notebook.run(f"{FOR_BEST}\nmc.log(step=1, score={score})")
    until(lambda: live.versions[0].value == 6.0)
    assert [one.value for one in live.versions] == [6.0, 5.0, 1.0]
    until(lambda: live.version == 3, 4 * WITHIN_S)
    notebook.run("%%distribute --nodes 1 --plain\nimport minicluster as mc\nmc.log(step=1, score=9.0)")
    until(lambda: "made or changed no 'best'" in live.versions[0].error, 4 * WITHIN_S)
    until(lambda: live.details.model.active == 3)
    kinds = [one.kind for one in ModelCalls(service).events(live.id).events]
    assert (kinds.count("replica-failed"), kinds.count("fell-back")) == (1, 1)
    notebook.run("%serve auto best off")
    assert live.details.model.auto is None


@pytest.mark.full("tests/service/api/jobs/test_models has it with replicas of the test's own")
def test_scale_and_logs(serve, notebook, capsys):
    notebook.run("def talk(a):\n    print('asked', float(a.sum()))\n    return a")
    live = serve("talk --example x")
    notebook.run("%serve scale talk 2")
    until(lambda: live.details.model.ready == 2, 3 * WITHIN_S)
    for _ in range(8):
        live.predict([[7, 0, 0]])
    until(lambda: _log(notebook, capsys))
    notebook.run("%serve scale talk 1")
    until(lambda: len(live.details.replicas) == 1, 3 * WITHIN_S)
    assert live.predict([[1, 1, 1]]) == [[1.0, 1.0, 1.0]]


@pytest.mark.full("tests/service/api/jobs/test_models has replicas that end")
def test_a_replica_that_its_owner_stops_has_not_failed_and_is_replaced(serve, notebook, service):
    live = serve()
    (one,) = live.details.replicas
    notebook.run(f"%distribute stop {one.job_id}")
    until(lambda: service.job(one.job_id).state is JobState.STOPPED)
    until(lambda: live.details.model.ready == 1, 3 * WITHIN_S)
    (other,) = live.details.replicas
    assert other.job_id != one.job_id
    kinds = [line.kind for line in ModelCalls(service).events(live.id).events]
    assert "replica-failed" not in kinds


def _log(notebook, capsys):
    capsys.readouterr()
    notebook.run("%serve logs talk")
    return "asked 7.0" in capsys.readouterr().out
