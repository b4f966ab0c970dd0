"""Traces that are one table with a row for each job: a lab's own, Philly's, Muri's and Tiresias'.

If a trace names no users, all jobs have one owner.
"""

from __future__ import annotations

import csv
import re
from calendar import timegm
from pathlib import Path

from minicluster_hub.simulator.traces.models import gradient_bytes
from minicluster_hub.simulator.workload import TracedJob


def read_lab(trace: Path) -> list[TracedJob]:
    """Read a small lab's jobs: job_id, user, submit_s, duration_s, num_gpus, walltime_s."""
    return [
        TracedJob(
            job_id=int(row["job_id"]),
            owner=row["user"],
            submitted_at=float(row["submit_s"]),
            duration_s=float(row["duration_s"]),
            slots=int(row["num_gpus"]),
            time_limit_s=float(row["walltime_s"]),
        )
        for row in _rows(trace)
    ]


def read_philly(trace: Path) -> list[TracedJob]:
    """Read Microsoft's Philly clusters in 2017 (Jeon et al., ATC 2019), without jobs of zero seconds.

    The trace names no users. The owner of a job is its virtual cluster, which belonged to one group.
    """
    rows = [row for row in _rows(trace) if float(row["duration"]) > 0]
    moments = [_seconds(row["timestamp"]) for row in rows]
    first = min(moments, default=0)
    return [
        TracedJob(
            job_id=number,
            owner=row["cluster"],
            submitted_at=float(moment - first),
            duration_s=float(row["duration"]),
            slots=int(row["num_gpus"]),
            group=row["cluster"],
        )
        for number, (moment, row) in enumerate(zip(moments, rows, strict=True))
    ]


def read_muri(trace: Path) -> list[TracedJob]:
    """Read Muri's jobs (Zhao et al., SIGCOMM 2022), Philly's with models added; times are in milliseconds."""
    return [_of_model(row, per_s=1000.0, step_s=float(row["iteration_time"]) / 1000) for row in _rows(trace)]


def read_tiresias(trace: Path) -> list[TracedJob]:
    """Read Tiresias' jobs for trying out (Gu et al., NSDI 2019); times are in seconds."""
    return [_of_model(row, step_s=float(row["duration"]) / float(row["iterations"])) for row in _rows(trace)]


def _of_model(row: dict[str, str], *, step_s: float, per_s: float = 1.0) -> TracedJob:
    """Return the job of a row with a model. per_s: the row's units of time per second."""
    return TracedJob(
        job_id=int(row["job_id"]),
        owner="",
        submitted_at=float(row["submit_time"]) / per_s,
        duration_s=float(row["duration"]) / per_s,
        slots=int(row["num_gpu"]),
        step_s=step_s,
        gradient_bytes=gradient_bytes(row["model_name"]),
    )


def _rows(trace: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(trace.read_text().splitlines()))


def _seconds(stamp: str) -> int:
    """Return the seconds since the epoch of "2017-10-09 07:01:55"."""
    year, month, day, hour, minute, second = (int(part) for part in re.split("[- :]", stamp))
    return timegm((year, month, day, hour, minute, second))
