"""Slurm accounts for jobs by itself: what the engine starts is there with its account, nodes and time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minicluster_hub.engines.capabilities import QueueRequest
from minicluster_hub.engines.slurm.engine import SlurmEngine

from ..patience import eventually
from . import accounting, daemons
from .accounting import ACCOUNT, AccountedSlurm
from .requests import gangs


@pytest.fixture(scope="module")
def accounted(needs: Callable[[object, str], None]) -> Iterator[AccountedSlurm]:
    reason = daemons.lacking() or accounting.lacking()
    needs(not reason, reason)
    slurm = AccountedSlurm()
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


def make(slurm: AccountedSlurm, folder: Path, **options: str) -> SlurmEngine:
    return SlurmEngine(data_dir=str(folder), tmp_dir=str(folder), slurm_conf=str(slurm.conf), **options)


async def test_a_gang_is_one_job_in_slurms_accounting(accounted: AccountedSlurm, tmp_path: Path) -> None:
    async with gangs(accounted, make(accounted, tmp_path, account=ACCOUNT)) as made:
        await made.started(1, "ada", nodes=2)
        number = accounted.run("squeue", "-h", "-o", "%i").strip()
    told = accounted.run("sacct", "-X", "-n", "-P", "-j", number, "-o", "Account,User,NNodes,AllocTRES")
    account, user, nodes, resources = told.strip().split("|")
    assert (account, user, nodes) == (ACCOUNT, "root", "2")
    assert "cpu=" in resources
    steps = accounted.run("sacct", "-n", "-P", "-j", number, "-o", "JobName").splitlines()
    assert sum(step.startswith("mc-t") for step in steps) == 2


async def test_a_gang_that_slurm_preempts_is_lost(accounted: AccountedSlurm, tmp_path: Path) -> None:
    accounted.run("sacctmgr", "-i", "add", "qos", "urgent", "preempt=normal")
    accounted.run("sacctmgr", "-i", "modify", "user", "root", "set", "qos+=urgent")
    async with gangs(accounted, make(accounted, tmp_path, account=ACCOUNT, qos="normal")) as made:
        tasks = await made.started(1, "ada", nodes=3)
        words = ["sbatch", "--parsable", f"--account={ACCOUNT}", "--qos=urgent", "-N3", "--exclusive"]
        urgent = accounted.run(*words, "--chdir=/", "--output=/dev/null", "--wrap=sleep 600").strip()
        try:
            for task_id in tasks:
                await eventually(lambda task_id=task_id: made.engine.tasks()[task_id].node_lost)
            await eventually(lambda: accounted.run("squeue", "-h", "-o", "%T", "-j", urgent) == "RUNNING\n")
        finally:
            accounted.run("scancel", urgent)


async def test_what_slurm_refuses_is_told_in_its_words(accounted: AccountedSlurm, tmp_path: Path) -> None:
    engine = make(accounted, tmp_path, account="no-such-account")
    await engine.open()
    try:
        queue, request = engine.batch_queue, QueueRequest(1, "ada", 0, 1, 1, 1)
        await eventually(lambda: "Invalid account" in queue.request([request], []).waits[1].reason)
        assert "was not taken by Slurm" in queue.request([request], []).waits[1].reason
    finally:
        await engine.close()
