"""A small lab's jobs: job_id, user, submit_s, duration_s, num_gpus, walltime_s."""

from __future__ import annotations

from csv import DictReader

from minicluster_hub.simulator.traces import Trace
from minicluster_hub.simulator.work import TracedJob


def read(trace: Trace) -> list[TracedJob]:
    return [_job(row) for row in DictReader(trace.text().splitlines())]


def _job(row: dict[str, str]) -> TracedJob:
    return TracedJob(
        job_id=int(row["job_id"]),
        owner=row["user"],
        submitted_at=float(row["submit_s"]),
        duration_s=float(row["duration_s"]),
        slots=int(row["num_gpus"]),
        time_limit_s=float(row["walltime_s"]),
    )
