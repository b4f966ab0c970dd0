"""Shared GPUs of the engine `local`: MPS is started, limited, found again and ended; tasks get its folder.

This machine has no GPU, and MPS runs only on one. So NVIDIA's programs are stand-ins on PATH, which note what
they are told and answer as NVIDIA's do; all else is real. What CUDA does with it is not seen here.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from minicluster.runtime.node import mps
from minicluster.wire.machines.gpu_share import MPS_MODULE, share_environment
from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.local import engine as local
from minicluster_hub.engines.local.shared_gpus import LABEL
from minicluster_hub.support.processes import DATA_LABEL, end_all, find, labelled

from ...patience import WITHIN_S, eventually

CONTROL = """#!/bin/sh
if [ "$1" = -f ]; then
  echo "$CUDA_VISIBLE_DEVICES" > "$CUDA_MPS_PIPE_DIRECTORY/daemon"
  exec sleep 600
fi
[ -e "$CUDA_MPS_PIPE_DIRECTORY/daemon" ] || exit 1
read -r command
echo "$command" >> "$CUDA_MPS_PIPE_DIRECTORY/commands"
[ "$command" != quit ] || rm "$CUDA_MPS_PIPE_DIRECTORY/daemon"
"""
SMI = """#!/bin/sh
echo "{capability}, 24564"
"""


def install(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """NVIDIA's programs for two GPUs of a machine, as stand-ins."""
    programs = tmp_path / "programs"
    programs.mkdir()
    install(programs, mps.CONTROL, CONTROL)
    install(programs, "nvidia-smi", SMI.format(capability="8.6"))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(local, "gpu_ids", lambda: ("0", "1"))
    monkeypatch.setattr(mps, "_ENDS_WITHIN_S", 0.2)
    return programs


class Sleeping(local.LocalEngine):
    """Its tasks do nothing."""

    def _command(self):
        return ["sleep", "600"]


@pytest.fixture
async def started(tmp_path, driver):
    """A function that opens an engine; all are closed, and what they started is ended."""
    engines, data = [], tmp_path / "data"

    async def start(**traits):
        engine = Sleeping(data_dir=str(data), node_count=2, **{"share_gpus": True, **traits})
        engine.on_change = lambda: None
        engines.append(engine)
        await engine.open()
        return engine

    yield start
    for engine in engines:
        await engine.close()
    end_all(labelled(**{DATA_LABEL: str(data)}), 0.5)


def launch(task_id, node="node-1"):
    return TaskLaunch(task_id, 1, "ada", node, (0,), "secret", ("http://127.0.0.1:1/",), gpu_share=0.5)


def variables(engine, task_id):
    """Return the environment of a task's process."""
    (process,) = local.task_processes(Path(engine.data_dir) / "tasks" / str(task_id))
    return process.environ()


def daemons(engine):
    """Return the process of each shared GPU's program, by the GPU's index."""
    found = {}
    for process in find(labelled(**{DATA_LABEL: engine.data_dir})):
        with suppress(psutil.NoSuchProcess):  # It may end meanwhile.
            if MPS_MODULE in process.cmdline():
                found[process.environ()[LABEL]] = process.pid
    return found


async def test_two_tasks_of_a_gpu_have_one_daemon_which_limits_each_to_half_its_memory(started):
    engine = await started()
    assert [node.no_gpu_share for node in engine.nodes()] == ["", ""]
    await engine.start(launch(1))
    await engine.start(launch(2))
    await engine.start(launch(3, "node-2"))
    folder = Path(engine.data_dir) / "mps" / "0"
    for task_id in (1, 2):
        environ = variables(engine, task_id)
        assert environ["CUDA_MPS_PIPE_DIRECTORY"] == str(folder)
        assert (environ["MINICLUSTER_GPU_SHARE"], environ["CUDA_VISIBLE_DEVICES"]) == ("0.5", "0")
        assert await mps.trouble(environ, WITHIN_S) == ""
    assert (folder / "commands").read_text() == "set_default_device_pinned_mem_limit 0 12282M\n"
    other = variables(engine, 3)
    assert await mps.trouble(other, WITHIN_S) == ""
    assert (Path(other["CUDA_MPS_PIPE_DIRECTORY"]) / "daemon").read_text() == "1\n"
    assert set(daemons(engine)) == {"0", "1"}


async def test_a_daemon_ends_when_nobody_has_a_share_and_the_next_one_starts_another(started):
    engine = await started()
    await engine.start(launch(1))
    await mps.trouble(variables(engine, 1), WITHIN_S)
    first = daemons(engine)["0"]
    engine.gpu_sharing.keep({("node-1", 0)})
    assert daemons(engine) == {"0": first}
    engine.gpu_sharing.keep(set())
    await engine.start(launch(2))
    assert daemons(engine)["0"] != first
    assert await mps.trouble(variables(engine, 2), WITHIN_S) == ""
    commands = Path(engine.data_dir, "mps", "0", "commands").read_text().split("\n")
    assert [one.split()[0] for one in commands if one].count("quit") == 1


async def test_a_new_service_finds_the_daemon(started):
    engine = await started()
    await engine.start(launch(1))
    await mps.trouble(variables(engine, 1), WITHIN_S)
    before = daemons(engine)
    await engine.close()
    again = await started()
    await again.start(launch(2))
    assert daemons(again) == before
    again.gpu_sharing.keep(set())
    assert await eventually(lambda: not daemons(again))


async def test_why_a_node_cannot_share(started, driver):
    assert {node.no_gpu_share for node in (await started(share_gpus=False)).nodes()} == {
        "this cluster does not share GPUs"
    }
    assert {node.no_gpu_share for node in (await started(devices="cpu")).nodes()} == {"it has no NVIDIA GPU"}
    install(driver, "nvidia-smi", SMI.format(capability="6.1"))
    assert (await started()).nodes()[0].no_gpu_share == "its compute capability 6.1 is below 7.0 (Volta)"
    (driver / mps.CONTROL).unlink()
    assert (await started()).nodes()[0].no_gpu_share == f"{mps.CONTROL} of NVIDIA's driver is not there"


async def test_a_task_says_why_its_gpu_cannot_be_shared_and_does_not_run_without_a_limit(started, driver):
    engine = await started()
    install(driver, mps.CONTROL, "#!/bin/sh\nexit 3\n")
    await engine.start(launch(1))
    why = await mps.trouble(variables(engine, 1), WITHIN_S)
    assert why == f"the GPU cannot be shared: {mps.CONTROL} ended at its start, exit code 3"
    assert await mps.trouble({}) == "", "a task with a whole GPU needs no daemon"


async def test_a_daemon_that_never_answers_is_not_waited_for_for_ever(tmp_path):
    environ = share_environment(str(tmp_path))
    assert await mps.trouble(environ, 0.05) == "the GPU cannot be shared: MPS did not start within 0.05 s"
    await asyncio.sleep(0)
