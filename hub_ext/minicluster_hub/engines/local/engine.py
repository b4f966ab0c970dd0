"""Starts agents as processes of this machine, and finds them again after the service was killed."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
from traitlets import Bool, Enum, Integer, Unicode, default

from minicluster.wire import Versions
from minicluster_hub.engines.base import Engine, TaskLaunch, TaskRefused, readable
from minicluster_hub.engines.local.data_agent import LocalDataAgent
from minicluster_hub.engines.local.homes import home_of
from minicluster_hub.engines.local.lighthouses import LocalLighthouses
from minicluster_hub.engines.local.shared_gpus import LocalSharedGpus
from minicluster_hub.engines.local.task_memory import VARIABLE, TaskMemory
from minicluster_hub.engines.local.watch import LOOPBACK, ExitWatch, start_detached
from minicluster_hub.jobs.records import NodeView, TaskView
from minicluster_hub.support.processes import (
    DATA_LABEL,
    SCRATCH_LABEL,
    TASK_LABEL,
    find,
    labelled,
    signal_all,
    wait_gone,
)

INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME")
"""What tasks get of the service's own environment: nothing that could be a secret."""
_OUTPUT_TAIL_BYTES = 4000

AGENT_MODULE = "minicluster.runtime.agent"
_KILL_TIMEOUT_S = 10.0
_KILL_PAUSE_S = 0.2


class LocalEngine(Engine):
    """This machine seen as virtual nodes. All users' tasks run as the user of the service."""

    data_dir = Unicode(help="Folder of the cluster's data; a task's scratch folder lies below it.").tag(
        config=True
    )
    node_count = Integer(3, min=1, help="Virtual nodes that this machine is seen as.").tag(config=True)
    devices = Enum(
        ("auto", "cpu"),
        "auto",
        help="auto: the slots are the GPUs where there are some. cpu: GPUs are left alone.",
    ).tag(config=True)
    share_gpus = Bool(
        False,
        help="Divide GPUs into halves for cells with --gpu-share. The cells on one GPU can end each other.",
    ).tag(config=True)
    data_cache_bytes = Integer(
        0,
        min=0,
        help="Most bytes that the cache of data sets holds; 0: what the disk has, but for 5 % or 10 GB.",
    ).tag(config=True)
    python = Unicode(sys.executable, help="The Python that runs the agents.").tag(config=True)

    @default("data_dir")
    def _default_data_dir(self) -> str:
        return str(getattr(self.parent, "data_dir", "data"))

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._data = Path(self.data_dir).resolve()
        self._tasks_root = self._data / "tasks"
        self._memory = TaskMemory(self._tasks_root)
        gpus = gpu_ids() if self.devices == "auto" else ()
        nodes = virtual_nodes(self.node_count, gpus)
        self._nodes = tuple(node for node, _ in nodes)
        self._gpus = {node.name: mine for node, mine in nodes}
        self.own_nodes = tuple(self._gpus)
        self._inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._tasks: dict[int, TaskView] = {}
        self._watches: dict[int, ExitWatch] = {}
        hooks = cast(logging.Logger, self.log), lambda: self.on_change()
        self._shared_gpus = LocalSharedGpus(self._data, self.python, self._gpus, self._inherited)
        self.gpu_sharing = self._shared_gpus if self.share_gpus else None
        self._lighthouses = self.lighthouses = LocalLighthouses(
            self._data, self.python, self._inherited, *hooks
        )
        self._data_agent = self.data_agents = LocalDataAgent(
            self._data, self.python, list(self._gpus), self.data_cache_bytes, self._inherited, *hooks
        )

    async def open(self) -> None:
        self._lighthouses.open()
        self._data_agent.open()
        if self.gpu_sharing is not None:
            self._shared_gpus.open()
            self._nodes = await self._shared_gpus.nodes_with_reasons(self._nodes)
        self._tasks_root.mkdir(parents=True, exist_ok=True)
        alive = tasks_alive(self._tasks_root)
        self._memory.sweep(alive)
        for task_id, pid in alive.items():
            self.log.info("found task %s running as process %s", task_id, pid)
            if pid is not None:
                self._watch(task_id, pid)
            else:
                self._tasks[task_id] = TaskView(task_id, alive=False)

    async def start(self, launch: TaskLaunch) -> None:
        if launch.task_id in self._tasks:
            return
        if launch.node not in self._gpus:
            raise TaskRefused(f"there is no node {launch.node}; there are: {', '.join(self._gpus)}")
        scratch = self._prepare_scratch(launch)
        try:
            environment, folder = self._environment(launch, scratch), self._folder_of(launch.owner)
            if launch.gpu_share:
                environment |= await self._shared_gpus.share(launch.node, launch.slots[0])
            pid = start_detached(self._command(), environment, scratch / "agent.log", folder)
        except OSError as error:
            raise TaskRefused(f"the agent could not be started on {launch.node}: {error}") from error
        self._watch(launch.task_id, pid)

    async def end(self, task_id: int) -> None:
        await asyncio.to_thread(kill_task, self._scratch(task_id))
        self._memory.remove(task_id)
        watch = self._watches.pop(task_id, None)
        if watch is not None:
            watch.finish()
        view = self._tasks.get(task_id, TaskView(task_id, alive=False))
        self._tasks[task_id] = replace(view, alive=False, clean=True)

    def tasks(self) -> Mapping[int, TaskView]:
        return self._tasks

    def forget(self, task_id: int) -> None:
        self._tasks.pop(task_id, None)
        shutil.rmtree(self._scratch(task_id), ignore_errors=True)
        self._memory.remove(task_id)

    def environment(self) -> Versions:
        return Versions.here()

    def nodes(self) -> tuple[NodeView, ...]:
        return self._nodes

    async def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        self._lighthouses.close()
        self._data_agent.close()
        self._shared_gpus.close()

    # --- one task -----------------------------------------------------------------------------

    def _command(self) -> list[str]:
        return [self.python, "-m", AGENT_MODULE]

    def _scratch(self, task_id: int) -> Path:
        return self._tasks_root / str(task_id)

    def _prepare_scratch(self, launch: TaskLaunch) -> Path:
        scratch = self._scratch(launch.task_id)
        scratch.mkdir(mode=0o700, exist_ok=True)
        token_file = scratch / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(launch.token)
        return scratch

    def _environment(self, launch: TaskLaunch, scratch: Path) -> dict[str, str]:
        environment = self._inherited | {
            "HOME": str(self._folder_of(launch.owner)),
            DATA_LABEL: str(self._data),
            "MINICLUSTER_SERVICE_URL": ",".join(launch.service_urls),
            "MINICLUSTER_TOKEN_FILE": str(scratch / "token"),
            "MINICLUSTER_NODE": launch.node,
            "MINICLUSTER_SLOTS": ",".join(map(str, launch.slots)),
            TASK_LABEL: str(launch.task_id),
            SCRATCH_LABEL: str(scratch),
            "MINICLUSTER_DATA_SETS": str(scratch / "data"),
            "MINICLUSTER_DATA_CACHE": str(self._data_agent.cache),
            "MINICLUSTER_SERVICE_BLOBS": str(self._data / "service" / "blobs"),
            # As NVIDIA's driver numbers them, and nvidia-smi.
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            VARIABLE: str(self._memory.folder(launch.task_id)),
        }
        gpus = self._gpus[launch.node]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[slot] for slot in launch.slots if gpus)
        return environment

    def _folder_of(self, owner: str) -> Path:
        """Return the owner's home, where relative paths of a cell mean what they mean in the notebook."""
        home = home_of(self._data, owner)
        return home if home.is_dir() else self._data

    def _watch(self, task_id: int, pid: int) -> None:
        self._tasks[task_id] = TaskView(task_id, alive=True)
        self._watches[task_id] = ExitWatch(pid, lambda exit_code: self._on_exit(task_id, exit_code))

    def _on_exit(self, task_id: int, exit_code: int | None) -> None:
        self._watches.pop(task_id, None)
        detail = self._output_tail(task_id)
        self._tasks[task_id] = TaskView(task_id, alive=False, exit_code=exit_code, detail=detail)
        self.on_change()

    def _output_tail(self, task_id: int) -> str:
        path = self._scratch(task_id) / "agent.log"
        if not path.exists():
            return ""
        return readable(path.read_bytes()[-_OUTPUT_TAIL_BYTES:].decode(errors="replace"))


# What this machine offers: virtual nodes whose slots are its GPUs, or CPU shares without any.


def gpu_ids(dev: Path = Path("/dev"), environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the NVIDIA GPUs as CUDA_VISIBLE_DEVICES names them, by their device files: no driver call.

    If the service itself was given some by that variable, those. CUDA numbers what it sees from 0: in a
    container, /dev/nvidia5 may be the only GPU, and is number 0.
    """
    given = environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return tuple(name.strip() for name in given.split(",") if name.strip())
    found = sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in dev.glob("nvidia*"))
    return tuple(str(number) for number in range(found))


def virtual_nodes(count: int, gpus: Sequence[str]) -> tuple[tuple[NodeView, tuple[str, ...]], ...]:
    """Return `count` nodes, each with the ids of its GPUs.

    GPUs are dealt in turn; with fewer GPUs than nodes there are as many nodes as GPUs, so that the
    ranks of a job never mix devices. Without any, each node has one CPU slot. The machine's cores and memory
    are dealt, too.
    """
    total = min(count, len(gpus)) if gpus else count
    dealt = [tuple(gpus[index::total]) for index in range(total)]
    cpus = len(os.sched_getaffinity(0)) / total
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // total
    return tuple(
        (
            NodeView(
                f"node-{index + 1}",
                True,
                LOOPBACK,
                ("gpu",) * len(mine) or ("cpu",),
                cpus=cpus,
                memory_bytes=memory_bytes,
            ),
            mine,
        )
        for index, mine in enumerate(dealt)
    )


# The processes of a task: all that carry its label, whatever group or session they are in.


class ProcessesRemain(Exception):
    """Processes that outlive SIGKILL hang in the kernel (a dead file system, a GPU driver)."""

    def __init__(self, scratch: Path, pids: list[int]) -> None:
        super().__init__(f"processes {pids} of the task in {scratch} do not end after SIGKILL")


def tasks_alive(tasks_root: Path) -> dict[int, int | None]:
    """Return the task ids of all labelled processes alive below `tasks_root`, with the agent's pid.

    None: processes of the task are left, its agent is not.
    """

    def is_of_cluster(env: Mapping[str, str]) -> bool:
        return SCRATCH_LABEL in env and Path(env[SCRATCH_LABEL]).parent == tasks_root

    found: dict[int, int | None] = {}
    for process in find(is_of_cluster):
        with suppress(psutil.NoSuchProcess):
            task_id = int(process.environ()[TASK_LABEL])
            is_agent = AGENT_MODULE in process.cmdline()
            found[task_id] = process.pid if is_agent else found.get(task_id)
    return found


def task_processes(scratch: Path) -> list[psutil.Process]:
    """Return all processes alive that carry the task's label."""
    return find(labelled(**{SCRATCH_LABEL: str(scratch)}))


def kill_task(scratch: Path) -> None:
    """Kill all processes of a task, also those that start meanwhile. Raises ProcessesRemain."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while found := task_processes(scratch):
        signal_all(found)
        wait_gone(found, _KILL_PAUSE_S)
        if time.monotonic() > deadline:
            raise ProcessesRemain(scratch, [process.pid for process in found])
