"""Slurm's machines as the suite for engines sees them, without the engine."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from minicluster_hub.engines.slurm.engine import SlurmEngine
from minicluster_hub.support.processes import find, labelled, signal_all

from ..service.engines.conformance import EngineHarness
from .daemons import NODES, SlurmDaemons

AGENT_MODULE = "minicluster.runtime.agent"


class SlurmHarness(EngineHarness):
    nodes = NODES

    def __init__(self, slurm: SlurmDaemons, folder: Path) -> None:
        self.slurm = slurm
        self.folder = folder

    def make(self) -> SlurmEngine:
        return SlurmEngine(data_dir=str(self.folder), tmp_dir=str(self.folder / "tmp"), python=sys.executable)

    def agents(self, task_id: int) -> int:
        return len(self._agents(task_id))

    def kill_agent(self, task_id: int) -> None:
        signal_all(self._agents(task_id))

    def shown(self, task_id: int) -> str:
        found = [*self._processes(task_id), *self._sruns(task_id)]
        shown = "\n".join(f"{one.environ()} {one.cmdline()}" for one in found)
        told = [self.slurm.run("scontrol", "show", kind) for kind in ("job", "step")]
        return "\n".join([shown, *told])

    def lose(self, node: str) -> None:
        self.slurm.lose(node)

    def bring_back(self, node: str) -> None:
        self.slurm.bring_back(node)

    def leftovers(self) -> list[str]:
        jobs = self.slurm.run("squeue", "-h", "-o", "%i %j %T").splitlines()
        kinds = ("tmp", "slurm/tasks", "lighthouses")
        files = [path for kind in kinds for path in (self.folder / kind).glob("*")]
        processes = find(labelled(MINICLUSTER_SLURM=str(self.folder)))
        return [*jobs, *map(str, files), *map(str, processes)]

    def _processes(self, task_id: int) -> list[psutil.Process]:
        return find(labelled(MINICLUSTER_SLURM=str(self.folder), MINICLUSTER_TASK=str(task_id)))

    def _agents(self, task_id: int) -> list[psutil.Process]:
        return [one for one in self._processes(task_id) if AGENT_MODULE in one.cmdline()]

    def _sruns(self, task_id: int) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.name() == "srun" and any(f"-t{task_id}-" in word for word in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found
