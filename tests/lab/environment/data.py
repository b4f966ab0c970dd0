"""An administrator's data sets: pushed, read by ranks, and inspected on the nodes' disks.

Each cache is small: it holds `PIECES` pieces, so that a few data sets fill it.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from minicluster.client.client import JobServiceClient
from minicluster.datasets.folder import scan
from minicluster.datasets.push import Push, PushState
from minicluster_hub.engines.swarm.names import DATA_VOLUME

from ..cluster import LabCluster
from ..jobs import Jobs
from ..machines import Node

PIECE_BYTES = 8 << 20
CACHE = "100m"
PIECES = 100_000_000 // PIECE_BYTES
_READ = """
import hashlib, minicluster as mc
digest, root = hashlib.sha256(), mc.data({name!r})
for path in sorted(path for path in root.rglob("*") if path.is_file()):
    digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
print("read", digest.hexdigest(), flush=True)
"""
_STAY = "import time\nwhile True: time.sleep(0.1)\n"


@pytest.fixture(scope="module")
def ready(standing: LabCluster) -> LabCluster:
    """The cluster with small caches, and with gangs that stay warm for the test's next job."""
    keep_warm = "--service-option=--MiniclusterHub.keep_warm_s=3"
    standing.set_options(f"--data-cache={CACHE}", keep_warm)
    return standing


@dataclass(frozen=True)
class Sample:
    """A data set in which each file is one piece. digest: printed by a rank that has read it."""

    name: str
    folder: Path
    digest: str

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir())

    @property
    def read(self) -> str:
        return f"read {self.digest}"


@dataclass(frozen=True)
class DataSets:
    """Pushes data sets by REST, as `%distribute data push` does."""

    jobs: Jobs
    root: Path

    def push(self, name: str, pieces: int) -> Sample:
        """Make a data set of random pieces, and push it."""
        folder = self.root / name
        folder.mkdir()
        for file in islice(_ends_of_packs(name), pieces):
            (folder / file).write_bytes(os.urandom(PIECE_BYTES))
        self.send(folder)
        return Sample(name, folder, _digest(folder))

    def send(self, folder: Path) -> PushState:
        """Push a folder under its own name; return the final progress."""
        push = Push(scan(folder), cast(JobServiceClient, self), lambda _: None)
        push.run(folder.name, None)
        return push.so_far

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request, as a push does."""
        return self.jobs.http.request(method, path, **more).raise_for_status()

    def submit(self, sample: Sample, *, stay: bool = False, **spec: Any) -> int:
        """Submit a job on three nodes whose ranks read the whole data set; with `stay` they keep running."""
        source = _READ.format(name=sample.name) + (_STAY if stay else "")
        spec = {"nodes": 3, **spec}
        return self.jobs.submit(source, data=[{"name": sample.name}], **spec)

    def check_read(self, sample: Sample, job: int, ranks: int = 3) -> None:
        """Check that the job succeeded, and that each rank read the pushed data."""
        done = self.jobs.wait(job)
        assert done["state"] == "succeeded", (done, self.jobs.history(job))
        for rank in range(ranks):
            assert sample.read in self.jobs.log(job, rank)

    def listed(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self.ask("GET", "api/data").json()["sets"]}

    def nodes_with(self, sample: Sample) -> list[str]:
        return self.listed()[sample.name]["nodes"]

    def remove_all(self) -> None:
        for name in self.listed():
            self.ask("DELETE", f"api/data/sets/{name}")


@pytest.fixture
def sets(jobs: Jobs, tmp_path: Path) -> Iterator[DataSets]:
    """An administrator's data sets; all are removed afterwards."""
    made = DataSets(jobs, tmp_path)
    yield made
    jobs.stop_all()
    made.remove_all()


def files_on(node: Node, sample: Sample) -> dict[str, os.stat_result]:
    """Return the stat results of a data set's files in a node's cache."""
    return {path.name: path.stat() for path in _volume(node).rglob(f"{sample.name}-*")}


def damage(node: Node, sample: Sample) -> str:
    """Change a byte of a file in a node's cache, but not its size and mtime; return its name."""
    path = min(_volume(node).rglob(f"{sample.name}-*"))
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(4711)
        byte = file.read(1)[0]
        file.seek(4711)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return path.name


def data_set_agent(cluster: LabCluster, node: Node) -> list[str]:
    return cluster.docker("ps", "--quiet", "--filter", "label=org.minicluster.role=keeper", node=node)


def _volume(node: Node) -> Path:
    found = node.run(f"docker volume inspect --format {{{{.Mountpoint}}}} {DATA_VOLUME}")
    return Path(found.stdout.strip())


def _ends_of_packs(name: str) -> Iterator[str]:
    """Yield names of files that end a pack, if the pack is large enough."""
    names = (f"{name}-{number:05}" for number in count())
    return (one for one in names if zlib.crc32(one.encode()) % 16 == 0)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
