"""A real hub whose job service uses a Slurm of the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minicluster_hub.launch.visitor import Visitor

from ..hub.clusters import RunningCluster
from ..patience import WITHIN_S
from .daemons import NODES, SlurmDaemons

_HUB = """
from minicluster_hub.configure import configure
c = get_config()
configure(c, engine="slurm", service_args=("--config={file}",))
"""
_SERVICE = """
c = get_config()
c.SlurmEngine.slurm_conf = {conf!r}
c.SlurmEngine.partition = "lab"
c.SlurmEngine.shared_dir = {shared!r}
c.SlurmEngine.tmp_dir = {tmp!r}
c.MiniclusterHub.keep_warm_s = 3.0
"""


def running(slurm: SlurmDaemons, folder: Path, *, service: str = "", hub: str = "") -> RunningCluster:
    """Start a hub with its data below a folder. service, hub: further lines of their configurations.

    The variable MINICLUSTER_TREE must name the folder: the hub's configuration is read from there.
    """
    file = folder / "service_config.py"
    values = {"conf": str(slurm.conf), "shared": str(folder / "shared"), "tmp": str(folder / "tmp")}
    file.write_text(_SERVICE.format(**values) + service)
    (folder / "jupyterhub_config.py").write_text(_HUB.format(file=file) + hub)
    for name in ("shared", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    return RunningCluster(folder / "data")


async def given_back(slurm: SlurmDaemons) -> None:
    """Wait until Slurm has none of a cluster's jobs. One whose job service ends before keeps its nodes."""
    async with asyncio.timeout(WITHIN_S):
        while slurm.run("squeue", "-h", "-o", "%i"):
            await asyncio.sleep(0.2)


class SlurmSite:
    nodes = NODES
    package = ("", "")

    def __init__(self, slurm: SlurmDaemons, visitor: Visitor) -> None:
        self._slurm = slurm
        self.visitor = visitor

    @contextmanager
    def lost(self, node: str) -> Iterator[None]:
        self._slurm.lose(node)
        try:
            yield
        finally:
            self._slurm.bring_back(node)

    async def allow(self, digest: str) -> None:
        raise AssertionError(f"{digest} cannot be published here")
