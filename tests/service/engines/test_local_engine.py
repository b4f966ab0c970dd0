"""The engine `local` with real processes: started, found again, all ended."""

import asyncio
import os
import stat
import sys

import pytest

from minicluster_hub.engines.base import TaskLaunch, TaskRefused
from minicluster_hub.engines.local.engine import (
    LocalEngine,
    gpu_ids,
    task_processes,
    tasks_alive,
    virtual_nodes,
)
from minicluster_hub.support.processes import lives, signal_all

from ...patience import WITHIN_S

FAMILY = """
import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
time.sleep(600)
"""


class FamilyEngine(LocalEngine):
    """An engine whose tasks leave their process group, as a rank's children may."""

    script = FAMILY

    def _command(self):
        return [sys.executable, "-c", self.script, "minicluster.runtime.agent"]


class DyingEngine(FamilyEngine):
    script = "import sys; sys.exit('torch is not here')"


def launch(task_id=1, node="node-1", owner="ada"):
    return TaskLaunch(task_id, 1, owner, node, (0,), "secret-token", ("http://127.0.0.1:1/",))


async def opened(kind, folder, **traits):
    engine = kind(data_dir=str(folder), devices="cpu", **traits)
    engine.changed = asyncio.Event()
    engine.on_change = engine.changed.set
    await engine.open()
    return engine


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    left = tasks_alive(tmp_path / "tasks")
    for task_id in left:
        signal_all(task_processes(tmp_path / "tasks" / str(task_id)))
    assert left == {}, "a test left processes of these tasks"


async def family(folder, count=2):
    """Wait until the task and its child run."""
    async with asyncio.timeout(WITHIN_S):
        while len(found := task_processes(folder / "tasks" / "1")) < count:
            await asyncio.sleep(0.02)
    return found


async def test_end_leaves_no_process_of_the_whole_family(folder):
    engine = await opened(FamilyEngine, folder)
    await engine.start(launch())
    found = await family(folder)
    await engine.end(1)
    assert not any(map(lives, found))
    assert (engine.tasks()[1].alive, engine.tasks()[1].clean) == (False, True)
    await engine.end(1)
    engine.forget(1)
    assert 1 not in engine.tasks()
    assert not (folder / "tasks" / "1").exists()


async def test_a_second_start_of_the_same_task_does_nothing(folder):
    engine = await opened(FamilyEngine, folder)
    await engine.start(launch())
    await engine.start(launch())
    assert len(await family(folder)) == 2
    await engine.end(1)


async def test_a_new_engine_finds_what_runs_and_sees_it_end(folder):
    first = await opened(FamilyEngine, folder)
    await first.start(launch())
    found = await family(folder)
    await first.close()
    second = await opened(FamilyEngine, folder)
    assert second.tasks()[1].alive
    next(process for process in found if process.ppid() == os.getpid()).kill()
    async with asyncio.timeout(WITHIN_S):
        await second.changed.wait()
    view = second.tasks()[1]
    assert (view.alive, view.clean) == (False, False), "its child is still there"
    await second.end(1)
    assert second.tasks()[1].clean


async def test_orphans_without_their_agent_are_found_too(folder):
    first = await opened(FamilyEngine, folder)
    await first.start(launch())
    found = await family(folder)
    await first.close()
    agent = next(process for process in found if process.ppid() == os.getpid())
    agent.kill()
    os.waitpid(agent.pid, 0)
    second = await opened(FamilyEngine, folder)
    assert (second.tasks()[1].alive, second.tasks()[1].clean) == (False, False)
    await second.end(1)


async def test_the_last_words_of_a_task_that_dies_are_kept(folder):
    engine = await opened(DyingEngine, folder)
    await engine.start(launch())
    async with asyncio.timeout(WITHIN_S):
        await engine.changed.wait()
    view = engine.tasks()[1]
    assert (view.alive, view.exit_code, view.detail) == (False, 1, "torch is not here")
    await engine.end(1)


async def test_a_python_that_is_not_there_is_a_clear_refusal(folder):
    engine = await opened(LocalEngine, folder, python="/nowhere/python")
    with pytest.raises(TaskRefused, match="could not be started on node-1"):
        await engine.start(launch())


async def test_the_token_is_in_a_private_file_and_nowhere_else(folder, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "hub-secret")
    engine = await opened(FamilyEngine, folder)
    await engine.start(launch())
    token_file = folder / "tasks" / "1" / "token"
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    assert token_file.read_text() == "secret-token"
    for process in await family(folder):
        assert not any("secret" in value for value in [*process.environ().values(), *process.cmdline()])
    await engine.end(1)


def test_nodes_by_gpus():
    (first, mine), (second, others) = virtual_nodes(2, ("0", "1", "2"))
    assert (first.slot_kinds, mine) == (("gpu", "gpu"), ("0", "2"))
    assert (second.slot_kinds, others) == (("gpu",), ("1",))


@pytest.mark.parametrize(
    ("files", "given", "ids"),
    [
        ("nvidia0 nvidia1 nvidia10 nvidiactl nvidia-uvm", None, ("0", "1", "2")),
        ("nvidia5 nvidiactl", None, ("0",)),
        ("nvidia0 nvidia1", "1", ("1",)),
        ("nvidia0 nvidia1", "GPU-ab, GPU-cd", ("GPU-ab", "GPU-cd")),
        ("nvidia0 nvidia1", "", ()),
        ("nvidiactl", None, ()),
    ],
)
def test_gpus_are_named_as_cuda_numbers_those_that_it_sees(files, given, ids, tmp_path):
    for name in files.split():
        (tmp_path / name).touch()
    assert gpu_ids(tmp_path, {} if given is None else {"CUDA_VISIBLE_DEVICES": given}) == ids


def test_fewer_gpus_than_nodes_give_fewer_nodes_and_none_gives_cpu_slots():
    assert [node.name for node, _ in virtual_nodes(3, ("0",))] == ["node-1"]
    assert [node.slot_kinds for node, _ in virtual_nodes(3, ())] == [("cpu",)] * 3
