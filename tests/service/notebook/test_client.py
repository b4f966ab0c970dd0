"""The HTTP client against the real service: its requests, its errors, and how it resumes."""

import uuid

import pytest

from minicluster.capture.payload import CellPayload
from minicluster.client.client import JobServiceClient
from minicluster.client.connection import ServiceError
from minicluster.client.sse import ConnectionStatus, Ended, follow
from minicluster.wire import CountRange, JobSpec, JobState, LogChunk


def cell(service, source, nodes=1):
    blob = service.put_blob(CellPayload(source, "Cell In[1]", pull=()).to_bytes())
    return JobSpec(payload_sha256=blob.sha256, nodes=CountRange(min=nodes, max=nodes))


def ended(service, job_id):
    *_, last = follow(service, job_id)
    assert isinstance(last, Ended)
    return last.job


def test_the_same_key_is_the_same_job(service):
    spec, key = cell(service, "1"), uuid.uuid4().hex
    assert service.submit(spec, key).id == service.submit(spec, key).id
    assert ended(service, service.jobs(1)[0].id).state is JobState.SUCCEEDED


def test_no_is_told_with_its_hint(service):
    with pytest.raises(ServiceError) as caught:
        service.job(10**6)
    assert caught.value.code == "unknown_job"
    assert str(10**6) in caught.value.message


def test_another_users_job_is_unknown(cluster, service):
    job = service.submit(cell(service, "1"))
    bob = JobServiceClient(cluster.url, "bob-token")
    with pytest.raises(ServiceError) as caught:
        bob.job(job.id)
    assert caught.value.code == "unknown_job"
    with pytest.raises(ServiceError):
        list(follow(bob, job.id))
    bob.close()
    ended(service, job.id)


def test_a_token_that_nobody_has(cluster):
    with pytest.raises(ServiceError) as caught:
        JobServiceClient(cluster.url, "stolen").jobs()
    assert "token" in str(caught.value)


def test_a_notebook_without_a_hub_is_told_so():
    with pytest.raises(ServiceError) as caught:
        JobServiceClient.from_environment({"MINICLUSTER_URL": "http://127.0.0.1:9/"})
    assert "JUPYTERHUB_API_TOKEN" in caught.value.message
    assert "hub" in caught.value.hint


def test_a_service_that_is_not_there_is_told_after_some_patience():
    with pytest.raises(ServiceError) as caught:
        JobServiceClient("http://127.0.0.1:9/services/minicluster/", "ada-token", retry_for_s=0.3).jobs()
    assert caught.value.code == "unreachable"
    assert "127.0.0.1:9" in caught.value.message


def test_the_end_of_a_log(service):
    job = service.submit(cell(service, "for i in range(1000): print('line', i)"))
    ended(service, job.id)
    text, left_out = service.log(job.id, 0, 100)
    assert text.endswith("line 999\n")
    assert len(text) == 100
    assert left_out == sum(len(f"line {i}\n") for i in range(1000)) - 100


def test_a_killed_service_costs_no_output_and_doubles_none(cluster, service, tmp_path):
    go = tmp_path / "go"
    source = (
        "import time\nfrom pathlib import Path\nfor i in range(150):\n    print('line', i, flush=True)\n"
        f"    time.sleep(0.02)\n    while i == 100 and not Path({str(go)!r}).exists(): time.sleep(0.01)"
    )
    job = service.submit(cell(service, source, 2))
    text, lost, killed = "", [], False
    for event in follow(service, job.id):
        if isinstance(event, LogChunk) and event.stream == "rank-1":
            text += event.text
        if isinstance(event, ConnectionStatus):
            lost.append(event.lost)
        if "line 20" in text and not killed:
            killed = True
            cluster.kill()
            cluster.start()
            go.touch()
    assert text == "".join(f"line {i}\n" for i in range(150))
    assert lost[0]
    assert lost[-1] == ""
    assert service.job(job.id).state is JobState.SUCCEEDED
