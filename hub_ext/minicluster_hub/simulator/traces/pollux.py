"""Pollux's workloads (Qiao et al., OSDI 2021): 160 jobs in 8 h, made for 16 nodes with 4 GPUs each.

They lie in a folder beside profiles/, from which a job's duration on any number of GPUs follows.
"""

from __future__ import annotations

from csv import DictReader

from minicluster_hub.simulator.traces import Trace
from minicluster_hub.simulator.traces.models import gradient_bytes
from minicluster_hub.simulator.traces.profiles import Measured, Profile, load
from minicluster_hub.simulator.work import TracedJob

_GPUS_PER_NODE = 4
_MOST_LOCAL = {"yolov3": 8}
_ON_ONE_GPU = ("ncf",)
"""Never on more, as in the authors' own simulation."""


def read(trace: Trace) -> list[TracedJob]:
    rows = list(DictReader(trace.text().splitlines()))
    names = sorted({row["application"] for row in rows})
    profiles = {name: load(trace, f"../profiles/{name}", _MOST_LOCAL.get(name)) for name in names}
    adapted = {name: _adapted(name, profile) for name, profile in profiles.items()}
    return [
        _job(number, row, profiles[row["application"]], adapted[row["application"]])
        for number, row in enumerate(rows)
    ]


def _job(
    number: int, row: dict[str, str], profile: Profile, adapted: dict[tuple[bool, int], float]
) -> TracedJob:
    """Its owner is not known: all are of one."""
    name, gpus, batch = row["application"], int(row["num_replicas"]), int(row["batch_size"])
    crosses = gpus > _GPUS_PER_NODE
    duration_s = profile.train_s(batch, gpus, crosses=crosses)
    most = 1 if name in _ON_ONE_GPU else profile.most_gpus(batch)
    fixed = {
        (several, count): profile.train_s(batch, count, crosses=several)
        for several in (False, True)
        for count in range(1, most + 1)
    }
    return TracedJob(
        job_id=number,
        owner="",
        submitted_at=float(row["time"]),
        duration_s=duration_s,
        slots=gpus,
        step_s=profile.step_s(batch, gpus, crosses=crosses),
        gradient_bytes=gradient_bytes(name),
        speeds=Measured(fixed, duration_s, most),
        elastic_speeds=Measured(adapted, duration_s, max(count for _, count in adapted)),
    )


def _adapted(name: str, profile: Profile) -> dict[tuple[bool, int], float]:
    most = 1 if name in _ON_ONE_GPU else profile.most_gpus(max(profile.steps))
    return {
        (several, count): profile.best_train_s(count, crosses=several)
        for several in (False, True)
        for count in range(1, most + 1)
    }
