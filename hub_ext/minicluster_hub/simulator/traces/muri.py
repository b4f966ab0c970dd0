"""Muri's traces (Zhao et al., SIGCOMM 2022), from Philly's with models added; times are in milliseconds."""

from __future__ import annotations

from csv import DictReader

from minicluster_hub.simulator.traces import Trace
from minicluster_hub.simulator.traces.models import gradient_bytes
from minicluster_hub.simulator.work import TracedJob


def read(trace: Trace) -> list[TracedJob]:
    return [_job(row) for row in DictReader(trace.text().splitlines())]


def _job(row: dict[str, str]) -> TracedJob:
    """Its owner is not known: all are of one."""
    return TracedJob(
        job_id=int(row["job_id"]),
        owner="",
        submitted_at=float(row["submit_time"]) / 1000,
        duration_s=float(row["duration"]) / 1000,
        slots=int(row["num_gpu"]),
        step_s=float(row["iteration_time"]) / 1000,
        gradient_bytes=gradient_bytes(row["model_name"]),
    )
