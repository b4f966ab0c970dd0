"""A cluster that `up` makes on three Docker hosts, for benchmarks, as administrators and users access it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from pathlib import Path

from notebook import Notebook
from parts.cluster_start import has_server

from minicluster_hub.launch.demo import SERVICE_PATH

sys.path.append(str(Path(__file__).resolve().parents[2]))
from tests.lab.cluster import SOCKET, UP_WITHIN_S, Images, LabCluster
from tests.lab.machines import Lab, Node
from tests.lab.machines.builder import build_engine
from tests.lab.machines.images import build_product, build_registry, push
from tests.lab.machines.packages import missing
from tests.lab.machines.processes import wait_for

TAG = "bench"
GPUS_PER_NODE = 2
KNOWN = "known-"
HERE, CONFIG_NAME = "/here", "three_hosts.py"
CONFIG = f'''\
import sys
from minicluster_hub.configure import configure

c = get_config()
configure(c)

# What answers like a notebook server and is none: the hub and the spawner know it as one.
STUB = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

ThreadingHTTPServer(("", 8888), Answer).serve_forever()
"""

def stub(spawner):
    if spawner.user.name.startswith("{KNOWN}"):
        spawner.cmd = ["python", "-P", "-c", STUB]

c.Spawner.pre_spawn_hook = stub
'''


def stage(what: str) -> None:
    """Print a benchmark's stage."""
    print(f"{time.strftime('%X')}  {what}", file=sys.stderr, flush=True)


class BenchCluster(LabCluster):
    """A lab cluster whose hub configuration also allows simulated notebook servers."""

    def __init__(self, lab: Lab, images: Images, folder: Path, keep_warm_s: float) -> None:
        super().__init__(lab, images)
        self._folder = folder
        self._keep_warm_s = keep_warm_s
        (folder / CONFIG_NAME).write_text(CONFIG)

    def command(self, *arguments: str, check: bool = True, within_s: float = UP_WITHIN_S) -> str:
        mounts = [f"--volume={SOCKET}:{SOCKET}", f"--volume={self._folder}:{HERE}:ro"]
        argv = ["docker", "run", "--rm", *mounts, self.images.hub, *arguments]
        done = self.first.run(argv, check=check, within_s=within_s)
        return done.stdout + done.stderr

    def timed_up(self) -> tuple[float, str]:
        """Run `up`; return its seconds, including the command's container, and its output."""
        began = time.monotonic()
        output = self.up(
            f"--config={HERE}/{CONFIG_NAME}",
            f"--service-option=--MiniclusterHub.keep_warm_s={self._keep_warm_s:g}",
            "--service-option=--MiniclusterHub.prepared_s=0",
        )
        return time.monotonic() - began, output

    def wait_no_tasks(self) -> None:
        """Wait until the Swarm has no service, network or secret of a job."""
        wait_for(lambda: not self.remains(), "the last job's services to go", 60, 0.5)

    def container_times(self, since: float) -> list[str]:
        """Return when the current gang was created and started, in milliseconds since `since`."""
        times: dict[str, list[str]] = {"services made": [], "containers made": [], "containers run": []}
        times["services made"] = self._inspect("service", self.services("task"), ".CreatedAt", self.first)
        for node in self.lab.nodes:
            ids = self.docker("ps", "--quiet", "--filter=label=org.minicluster.role=task", node=node)
            times["containers made"] += self._inspect("container", ids, ".Created", node)
            times["containers run"] += self._inspect("container", ids, ".State.StartedAt", node)
        return [
            f"{(max(map(_seconds, records)) - since) * 1e3:6.0f}  {what}, the last one"
            for what, records in times.items()
        ]

    def _inspect(self, kind: str, names: list[str], field: str, node: Node) -> list[str]:
        return self.docker(kind, "inspect", f"--format={{{{json {field}}}}}", *names, node=node)

    @asynccontextmanager
    async def notebook(self) -> AsyncIterator[Notebook]:
        async with self.person() as person:
            if not await has_server(person.visitor):
                await person.start_server()
            for page in (f"{person.visitor.server_path}lab", SERVICE_PATH):
                (await person.visitor.http.get(page)).raise_for_status()
            async with person.kernel() as kernel:
                yield Notebook(kernel, person.visitor)


@contextmanager
def lab_cluster(
    name: str | None, folder: Path, keep_warm_s: float, gpus: int = GPUS_PER_NODE
) -> Iterator[BenchCluster]:
    """Yield three hosts with the images of this tree and without a Swarm: fresh ones, or those of a lab.

    A standing lab must not have a cluster; it is left without one.
    """
    if lacking := missing():
        raise SystemExit(lacking)
    stage("the images of this tree, and three hosts that have them")
    built = (*build_product(), build_registry())
    lab = Lab.attach(name) if name else Lab.fresh(gpus=gpus)
    try:
        cluster = BenchCluster(lab, _bring(lab, built), folder, keep_warm_s)
        try:
            yield cluster
        finally:
            if name:
                _take_down(cluster)
    finally:
        if not name:
            lab.remove()


def _seconds(text: str) -> float:
    return datetime.fromisoformat(json.loads(text)).timestamp()


def _bring(lab: Lab, built: tuple[str, ...]) -> Images:
    """Pull the images on every node, under names to which nobody else pushes meanwhile."""
    names = []
    for image in built:
        ours = f"{image.rpartition(':')[0]}:{TAG}"
        build_engine().docker("tag", image, ours)
        names.append(push(ours, lab.registry))
        with ThreadPoolExecutor(len(lab.nodes)) as pool:
            list(pool.map(lambda node: node.engine.docker("pull", "--quiet", names[-1]), lab.nodes))
    return Images(*names)


def _take_down(cluster: BenchCluster) -> None:
    print(cluster.command("down", "--data", "--yes", "--leave", check=False), file=sys.stderr)
    for node in cluster.lab.nodes[1:]:
        node.run(["docker", "swarm", "leave", "--force"], check=False)
