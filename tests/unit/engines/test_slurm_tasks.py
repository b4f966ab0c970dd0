"""When a task of the engine `slurm` has begun, and whether its end is a lost node's."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from contextlib import asynccontextmanager, suppress

import pytest

from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.capabilities import QueueRequest
from minicluster_hub.engines.slurm.commands import Commands
from minicluster_hub.engines.slurm.names import Names
from minicluster_hub.engines.slurm.parsing import SlurmJob, SlurmNode, SlurmStep
from minicluster_hub.engines.slurm.settings import SlurmSettings
from minicluster_hub.engines.slurm.tasks import BEGUN, SlurmTasks
from minicluster_hub.engines.slurm.view import SlurmView

from ...patience import eventually

NAMES, LOG = Names(b"secret"), logging.getLogger("minicluster-test")
SETTINGS = SlurmSettings("python3", image_command=("apptainer", "exec", "docker://{image}"))
JOB = SlurmJob(
    12, NAMES.allocation(QueueRequest(7, "ada", 0, 1, 1, 1), "ada"), "ada", "RUNNING", None, ("n1",), ""
)
STEP = SlurmStep("12.0", 12, ("n1",), "ada", NAMES.task(1, 1, 12))


class Slurm(Commands):
    """A Slurm in memory, with one job. Its sruns sleep."""

    def __init__(self):
        super().__init__(())
        self.listed = []
        self.pids = []

    async def jobs(self, users):
        return [JOB]

    async def steps(self, users):
        return list(self.listed)

    async def nodes(self):
        return [SlurmNode("n1", "idle", 4, 0, 0, "n1", "none")]

    def srun(self, user, words, given, output):
        process = subprocess.Popen(["sleep", "600"])
        process.returncode = 0  # ExitWatch collects its exit status.
        self.pids.append(process.pid)
        return process.pid


@asynccontextmanager
async def started(slurm, folder, image=None):
    """Start task 1 on n1; yield its tasks."""
    view = SlurmView(slurm, NAMES, lambda: {"ada"}, lambda: True, LOG)
    tasks = SlurmTasks(slurm, view, NAMES, SETTINGS, folder, lambda: None, LOG)
    await view.open()
    view.on_change = tasks.note_listed
    tasks.open()
    try:
        tasks.start(TaskLaunch(1, 1, "ada", "n1", (0,), "token", (), image=image), 12, {})
        yield tasks
    finally:
        await view.close()
        tasks.close()
        for pid in slurm.pids:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


@pytest.mark.parametrize("image", [None, "lab@sha256:1f"])
async def test_a_task_starts_until_its_step_runs_and_its_image_is_there(tmp_path, image):
    slurm = Slurm()
    async with started(slurm, tmp_path, image) as tasks:
        assert tasks.views()[1].alive and tasks.views()[1].starting
        slurm.listed.append(STEP)
        if image is not None:
            (tmp_path / "1.log").write_text("INFO: fetching layers\n")
            await eventually(lambda: not tasks.busy)
            assert tasks.views()[1].starting, "it would be lost, since its agent does not report"
            (tmp_path / "1.log").write_text(f"INFO: fetching layers\n{BEGUN}\n")
        await eventually(lambda: not tasks.views()[1].starting)
        assert tasks.views()[1].alive


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("srun: error: Task launch for StepId=1.0 failed on node n1: Communication connection failure", True),
        ("slurmstepd: error: execve(): /opt/python3: No such file or directory", False),
    ],
)
async def test_a_node_that_is_lost_at_the_start_does_not_fail_the_job(tmp_path, said, lost):
    slurm = Slurm()
    async with started(slurm, tmp_path) as tasks:
        (tmp_path / "1.log").write_text(f"{said}\n")
        os.kill(slurm.pids[0], signal.SIGKILL)
        await eventually(lambda: not tasks.views()[1].alive)
        view = tasks.views()[1]
        assert (view.node_lost, view.detail) == (lost, said)
        tasks.forget(1)
        assert not tasks.views() and not (tmp_path / "1.log").exists()
