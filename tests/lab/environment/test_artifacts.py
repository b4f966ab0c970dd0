"""Output files of unsuccessful jobs are stored: failed, stopped, or without one node."""

from __future__ import annotations

import hashlib
from typing import Any

from ..cluster import LabCluster
from ..faults.inject import power_lost
from ..jobs import Jobs
from ..machines.processes import wait_for
from .data import ready

__all__ = ["ready"]  # a fixture
WRITE = """
import time, minicluster as mc
(mc.output() / "logs").mkdir(exist_ok=True)
(mc.output() / "logs" / f"of {mc.rank()}").write_bytes(bytes([mc.rank()]) * 3_000_000)
print("written", flush=True)
"""
MEET = "import torch.distributed as dist\ndist.init_process_group()\ndist.barrier()\n"
"""After this line, all ranks have written their files."""
FAIL = WRITE + MEET + "if mc.rank() == 1:\n    raise ValueError('no luck')\n"
STAY = WRITE + "while True: time.sleep(0.1)\n"
TWICE = """
import time, minicluster as mc
first = mc.output() / "first"
if first.exists():
    (mc.output() / "second").write_text("after the loss")
else:
    first.write_text("before the loss")
    print("written", flush=True)
    while True: time.sleep(0.1)
"""


def listed(jobs: Jobs, job: int) -> dict[tuple[int, str], dict[str, Any]]:
    found = jobs.http.get(f"api/jobs/{job}/files").raise_for_status().json()
    assert not found["left"], found["left"]
    return {(one["part"], one["path"]): one for one in found["artifacts"]}


def content(jobs: Jobs, job: int, part: int, path: str) -> bytes:
    return jobs.http.get(f"api/jobs/{job}/files/{path}", params={"part": part}).raise_for_status().content


def wait_written(jobs: Jobs, job: int, ranks: int = 3) -> None:
    for rank in range(ranks):
        jobs.wait_log(job, "written", rank)


def test_files_of_a_failed_and_of_a_stopped_job_are_there(jobs: Jobs) -> None:
    stopped, failed = jobs.submit(STAY, nodes=3), jobs.submit(FAIL, nodes=3)
    wait_written(jobs, stopped)
    jobs.stop(stopped)
    for job, state in ((stopped, "stopped"), (failed, "failed")):
        assert jobs.wait(job)["state"] == state
        found = listed(jobs, job)
        assert sorted(found) == [(rank, f"logs/of {rank}") for rank in range(3)]
        for (part, path), one in found.items():
            data = content(jobs, job, part, path)
            assert data == bytes([part]) * 3_000_000
            assert one["sha256"] == hashlib.sha256(data).hexdigest()


def test_files_of_the_others_are_there_when_a_node_died(jobs: Jobs, ready: LabCluster) -> None:
    job = jobs.submit(TWICE, nodes={"min": 2, "max": 3})
    waiting = jobs.submit(STAY, nodes=3)
    wait_written(jobs, job)
    wait_written(jobs, waiting)
    with power_lost(ready, ready.lab.nodes[2]):
        check_files_of_two_nodes(jobs, job, waiting)


def check_files_of_two_nodes(jobs: Jobs, job: int, waiting: int) -> None:
    assert jobs.wait(job)["state"] == "succeeded", jobs.history(job)
    assert sorted(listed(jobs, job)) == [(part, path) for part in (0, 1) for path in ("first", "second")]
    assert content(jobs, job, 1, "first") == b"before the loss"

    wait_for(lambda: jobs.job(waiting)["state"] == "queued", "the other to wait for a third node", 60, 0.2)
    jobs.stop(waiting)
    assert jobs.wait(waiting)["state"] == "stopped"
    assert len(listed(jobs, waiting)) == 2, f"those of the nodes that are left: {jobs.history(waiting)}"
