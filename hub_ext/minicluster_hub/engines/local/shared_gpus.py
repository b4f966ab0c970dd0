"""The processes of MPS for this machine's shared GPUs, found again after a restart of the service."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from minicluster.wire.machines.gpu_share import (
    MPS_FAILED,
    MPS_LOGS,
    MPS_MODULE,
    MPS_PIPES,
    MPS_READY,
    share_environment,
)
from minicluster_hub.engines.base import TaskRefused, readable
from minicluster_hub.engines.capabilities import GpuSharing
from minicluster_hub.engines.local.watch import ExitWatch, start_detached
from minicluster_hub.jobs.records import NodeView
from minicluster_hub.support.processes import DATA_LABEL, find, labelled

LABEL = "MINICLUSTER_SHARED_GPU"
NO_GPU = "it has no NVIDIA GPU"


class LocalSharedGpus(GpuSharing):
    """One process per shared GPU, with a folder for its pipes. gpus: the ids of each node's GPUs."""

    def __init__(
        self, data: Path, python: str, gpus: Mapping[str, Sequence[str]], environment: Mapping[str, str]
    ) -> None:
        self._folder = data / "mps"
        self._command = [python, "-m", MPS_MODULE]
        self._label = {DATA_LABEL: str(data)}
        self._gpus = gpus
        self._environment = environment
        self._pids: dict[str, int] = {}
        """The process, by a GPU's id."""
        self._watches: dict[str, ExitWatch] = {}
        self._ending: dict[str, asyncio.Event] = {}

    def open(self) -> None:
        """Find the processes that an earlier service started."""
        for process in find(labelled(**self._label)):
            with suppress(psutil.NoSuchProcess):
                if (gpu := process.environ().get(LABEL)) is not None and MPS_MODULE in process.cmdline():
                    self._watch(gpu, process.pid)

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    async def nodes_with_reasons(self, nodes: Sequence[NodeView]) -> tuple[NodeView, ...]:
        """Return the nodes with the reasons why GPUs cannot be shared there."""
        return tuple([replace(node, no_gpu_share=await self._why_not(node.name)) for node in nodes])

    async def _why_not(self, node: str) -> str:
        if not self._gpus[node]:
            return NO_GPU
        pipe = asyncio.subprocess.PIPE
        checking = await asyncio.create_subprocess_exec(
            *self._command, "--check", *self._gpus[node], env=self._environment, stdout=pipe, stderr=pipe
        )
        said, trouble = await checking.communicate()
        return readable((said or trouble).decode(errors="replace")) if checking.returncode else ""

    async def share(self, node: str, slot: int) -> dict[str, str]:
        """Start the process of a GPU, unless it runs; return the variables of a task with a share of it.

        Raises TaskRefused.
        """
        gpu = self._gpus[node][slot]
        folder = self._folder / gpu
        if gpu in self._ending:
            await self._ending[gpu].wait()
        if gpu not in self._pids:
            folder.mkdir(parents=True, exist_ok=True)
            for name in (MPS_READY, MPS_FAILED):
                (folder / name).unlink(missing_ok=True)
            environment = {**self._environment, **self._label, LABEL: gpu, MPS_PIPES: str(folder)}
            environment |= {MPS_LOGS: str(folder), "CUDA_VISIBLE_DEVICES": gpu}
            try:
                self._watch(gpu, start_detached(self._command, environment, folder / "mps.log"))
            except OSError as error:
                raise TaskRefused(f"MPS could not be started for GPU {gpu}: {error}") from error
        # The daemon sees one GPU, so that its clients know it as the first one.
        return {**share_environment(str(folder)), "CUDA_VISIBLE_DEVICES": "0"}

    def keep(self, shared: Collection[tuple[str, int]]) -> None:
        kept = {self._gpus[node][slot] for node, slot in shared if slot < len(self._gpus.get(node, ()))}
        for gpu in self._pids.keys() - kept - self._ending.keys():
            self._ending[gpu] = asyncio.Event()
            with suppress(ProcessLookupError):
                os.kill(self._pids[gpu], signal.SIGTERM)

    def _watch(self, gpu: str, pid: int) -> None:
        self._pids[gpu] = pid
        try:
            self._watches[gpu] = ExitWatch(pid, lambda _: self._on_exit(gpu))
        except ProcessLookupError:
            self._on_exit(gpu)

    def _on_exit(self, gpu: str) -> None:
        self._watches.pop(gpu, None)
        self._pids.pop(gpu, None)
        if over := self._ending.pop(gpu, None):
            over.set()
