"""Gavel's traces (Narayanan et al., OSDI 2020): job types, steps to do, and measured steps per second.

Lines are tab separated. Traces of the real cluster have the weight and the deadline between the number of
GPUs and the arrival; traces for simulation have neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from minicluster_hub.simulator.traces.models import gradient_bytes
from minicluster_hub.simulator.workload import TracedJob

_GPU = "v100"
_SIMULATED_COLUMNS = 7


def read(trace: Path) -> list[TracedJob]:
    """Read the jobs; simulation_throughputs.json is beside the trace. All jobs have one owner."""
    measured = json.loads((trace.parent / "simulation_throughputs.json").read_text())[_GPU]
    lines = enumerate(line for line in trace.read_text().splitlines() if line)
    return [_job(number, line.split("\t"), measured) for number, line in lines]


def _job(number: int, columns: list[str], measured: Mapping[str, Mapping[str, float]]) -> TracedJob:
    kind = columns[0]
    if len(columns) == _SIMULATED_COLUMNS:
        steps, arrival, gpus = columns[4:]
    else:
        steps, gpus, _, _, arrival = columns[5:]
    steps_s = _steps_s(kind, int(gpus), measured)
    return TracedJob(
        job_id=number,
        owner="",
        submitted_at=float(arrival),
        duration_s=int(steps) / steps_s,
        slots=int(gpus),
        step_s=1 / steps_s,
        gradient_bytes=gradient_bytes(kind),
    )


def _steps_s(kind: str, gpus: int, measured: Mapping[str, Mapping[str, float]]) -> float:
    """Return the steps per second: measured, or in proportion to the next smaller measured number of GPUs."""
    for fewer in range(gpus, 0, -1):
        alone = measured.get(f"('{kind}', {fewer})")
        if alone is not None:
            return alone["null"] * gpus / fewer
    raise ValueError(f"the throughputs beside the trace tell nothing of {kind!r}")
