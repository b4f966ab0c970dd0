"""Past jobs as the simulator's input: from their records and leases."""

from dataclasses import replace

import pytest

from minicluster.wire import CountRange, JobSpec, JobState
from minicluster_hub.jobs.records import UseRecord
from minicluster_hub.simulator.what_if import past_jobs

from ..jobs.stored_states import job

SPEC = JobSpec(
    payload_sha256="a" * 64,
    nodes=CountRange(min=1, max=3),
    slots_per_node=2,
    priority=60,
    timeout_s=900.0,
)
OVER = job(JobState.SUCCEEDED, id=7, spec=SPEC, created_at=100.0, ended_at=560.0)


def use(began_at, ended_at, job_id=7, task_id=1):
    return UseRecord(0, "ada", job_id, None, task_id, "node-1", 2, 2, began_at, ended_at)


def test_a_job_is_taken_with_what_it_asked_for_and_had():
    uses = [use(200.0, 550.0), use(200.0, 550.0, task_id=2), use(0.0, 90.0, job_id=8)]
    (past,) = past_jobs([OVER], uses)
    assert (past.view.submitted_at, past.started_at, past.ended_at) == (100.0, 200.0, 560.0)
    assert (past.replicas, past.view.slots_per_replica, past.ran_s) == (2, 2, 350.0)
    view = past.view
    assert (view.min_replicas, view.max_replicas, view.priority, view.time_limit_s) == (1, 3, 60, 900.0)


def test_pauses_between_attempts_are_no_run_time():
    (past,) = past_jobs([OVER], [use(200.0, 300.0), use(500.0, 550.0, task_id=2)])
    assert (past.replicas, past.ran_s) == (1, 150.0)


def test_what_a_job_had_in_all_is_kept_when_its_nodes_changed():
    uses = [use(200.0, 500.0), use(200.0, 500.0, task_id=2), use(200.0, 300.0, task_id=3)]
    (past,) = past_jobs([OVER], uses)
    assert past.replicas == 2 and past.replicas * past.ran_s == pytest.approx(700.0)


def test_jobs_that_go_on_or_never_had_anything_are_left_out():
    going = replace(OVER, id=8, state=JobState.RUNNING, ended_at=None)
    queued = replace(OVER, id=9, state=JobState.STOPPED)
    server = replace(use(0.0, 50.0), job_id=None, server_id=3)
    assert not list(past_jobs([going, queued], [use(1.0, None, 8), use(5.0, 5.0, 9), server]))
