"""The engine `local` removes a task's files in memory, however the task ended."""

import os
import signal
from pathlib import Path

from minicluster_hub.engines.local.task_memory import TaskMemory

from .test_local_engine import FamilyEngine, family, folder, launch, opened

__all__ = ["folder"]

KEEPING = """
import os, pathlib, subprocess, sys, time
snapshot = pathlib.Path(os.environ['MINICLUSTER_MEMORY']) / 'job-1' / 'attempt-1-step-5'
snapshot.mkdir(parents=True)
(snapshot / 'part').write_bytes(bytes(1000))
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
time.sleep(600)
"""


class KeepingEngine(FamilyEngine):
    """An engine whose tasks write files in memory."""

    script = KEEPING


async def test_memory_goes_with_its_task_after_a_kill_of_the_agent_too(folder):
    engine = await opened(KeepingEngine, folder)
    await engine.start(launch())
    found = await family(folder)
    memory = TaskMemory(folder.resolve() / "tasks").folder(1)
    assert (memory / "job-1" / "attempt-1-step-5" / "part").exists()
    for process in found:
        os.kill(process.pid, signal.SIGKILL)
    await engine.changed.wait()
    await engine.end(1)
    engine.forget(1)
    assert not memory.exists()


async def test_what_tasks_left_that_are_gone_is_swept_and_nothing_else(folder):
    mine, others = (TaskMemory(Path(root)) for root in (folder.resolve() / "tasks", folder / "elsewhere"))
    engine = await opened(KeepingEngine, folder)
    await engine.start(launch())
    await family(folder)
    mine.folder(77).mkdir()
    others.folder(77).mkdir()
    again = await opened(KeepingEngine, folder)
    assert mine.folder(1).exists()
    assert not mine.folder(77).exists()
    assert others.folder(77).exists()
    others.remove(77)
    await again.end(1)
    assert not mine.folder(1).exists()
