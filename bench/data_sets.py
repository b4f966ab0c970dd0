"""How fast a data set is pushed to the cluster and fetched by a node, against rsync and the link's limit.

Two network namespaces with 1 Gbit/s between them stand for the cluster, and for a laptop or node: the job
service runs in one, the push and the data set agent in the other. Needs root. Uses two data sets of the same
size: many files, and one file. If rsync is not installed, a tar pipe replaces it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from parts.targets import Target, close

BOUND = 0.8
HERE, THERE = "10.97.0.1", "10.97.0.2"
PORT, BULK_PORT = 8099, 8098
PREFIX = "/services/minicluster/"
URL = f"http://{HERE}:{PORT}{PREFIX}"
_SERVICE = """
import sys
from minicluster_hub.app import main
from minicluster_hub.store.storage.datasets import DataSets

DataSets.holds = lambda *_: True  # no job wants what is fetched here
main(sys.argv[1:])
"""
TOKEN = "ada-token"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000, help="size of each data set")
    parser.add_argument("--files", type=int, default=20_000, help="files of the first one")
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc says it")
    parser.add_argument("--folder", default="/var/tmp", help="where 6 times that size fits")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        print(json.dumps(client(*given.client)))
    elif not given.inside:
        os.execvp("unshare", ["unshare", "-n", sys.executable, *sys.argv, "--inside"])
    else:
        with tempfile.TemporaryDirectory(prefix="minicluster-bench-", dir=given.folder) as folder:
            close(measure(Path(folder), given))


def measure(folder: Path, given: argparse.Namespace) -> Iterator[Target]:
    with a_link(given.rate) as there, a_service(folder / "cluster"):
        link_s = link_seconds(there, given.mb * 10**6)
        print(f"link: {given.mb} MB in {link_s:.2f} s, {given.mb / link_s:.0f} MB/s")
        for name, count in (("many", given.files), ("one", 1)):
            source = make_files(folder / name, given.mb * 10**6, count)
            peer, peer_s = peer_seconds(there, source, folder / "peer")
            pushed = there.ask("push", str(source), name)
            fetched = there.ask("fetch", pushed["manifest"], pushed["size"], str(folder / "node"))
            again = there.ask("push", str(source), f"{name}-again")
            print(f"{name}: {count} files; {peer} {peer_s:.2f} s")
            print(f"  push {times_text(pushed)} in {pushed['pieces']} pieces, again {times_text(again)}")
            print(f"  fetch {times_text(fetched)}")
            for what, seconds in (("upload", pushed["seconds"]), ("fetch", fetched["seconds"])):
                yield Target(f"data_{what}_{name}_vs_{peer}", peer_s / seconds, BOUND, at_most=False)
                yield Target(f"data_{what}_{name}_vs_link", link_s / seconds, BOUND, at_most=False)


def times_text(found: dict) -> str:
    return f"{found['seconds']:.2f} s ({found['cpu_s']:.1f} s of CPU)"


# --- two namespaces, and programs in the other one ------------------------------------------------


class There:
    """The other end of the link."""

    def __init__(self, pid: int) -> None:
        self._enter = ["nsenter", "-t", str(pid), "--net", "--"]

    def start(self, *command: str, **more: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self._enter, *command], **more)  # type: ignore[call-overload]

    def ask(self, *arguments: object) -> dict:
        own = [sys.executable, __file__, "--client", *map(str, arguments)]
        done = subprocess.run([*self._enter, *own], stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)


@contextmanager
def a_link(rate: str) -> Iterator[There]:
    other = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
    try:
        until(lambda: _network(other.pid) != _network(os.getpid()))
        there = There(other.pid)
        shape = f"tc qdisc add dev {{}} root tbf rate {rate} burst 256kb latency 50ms"
        run("ip link set lo up", f"ip link add here type veth peer name there netns {other.pid}")
        run(f"ip addr add {HERE}/24 dev here", "ip link set here up", shape.format("here"))
        for command in ("ip link set lo up", f"ip addr add {THERE}/24 dev there", "ip link set there up"):
            there.start(*command.split()).wait()
        there.start(*shape.format("there").split()).wait()
        yield there
    finally:
        other.kill()
        other.wait()


def _network(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)


def until(there: Callable[[], bool], within_s: float = 30.0) -> None:
    end = time.monotonic() + within_s
    while not there():
        if time.monotonic() > end:
            raise SystemExit("what the benchmark waits for did not come")
        time.sleep(0.05)


# --- the cluster's side -----------------------------------------------------------------------------


@contextmanager
def a_service(folder: Path) -> Iterator[None]:
    folder.mkdir()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from http.server import ThreadingHTTPServer

    from tests.service.notebook.conftest import HubUser

    hub = ThreadingHTTPServer(("127.0.0.1", 0), HubUser)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    environ = {
        **os.environ,
        "JUPYTERHUB_API_TOKEN": "the-services-own",
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub.server_port}/hub/api",
        "JUPYTERHUB_BASE_URL": "/",
        "JUPYTERHUB_CLIENT_ID": "service-minicluster",
        "JUPYTERHUB_SERVICE_NAME": "minicluster",
        "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
        "JUPYTERHUB_SERVICE_URL": f"http://{HERE}:{PORT}",
    }
    service = subprocess.Popen(
        [sys.executable, "-c", _SERVICE, "--data-dir", str(folder), "--log-level", "WARN"],
        env=environ,
    )
    try:
        until(_answers)
        yield
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(20)
        hub.shutdown()


def _answers() -> bool:
    try:
        return httpx.get(f"{URL}health").is_success
    except httpx.HTTPError:
        return False


def make_files(root: Path, size_bytes: int, count: int) -> Path:
    """Write files of incompressible bytes, in folders of 500."""
    block = random.Random(size_bytes + count).randbytes(1 << 20)
    for number in range(count):
        path = root / f"{number // 500:04}" / f"{number:06}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        left = size_bytes // count
        with path.open("wb") as file:
            file.write(number.to_bytes(8))
            for part in range(0, left - 8, len(block)):
                file.write(part.to_bytes(8))
                file.write(block[: min(len(block), left - 8 - part) - 8])
    return root


# --- the peers --------------------------------------------------------------------------------------


def link_seconds(there: There, size_bytes: int) -> float:
    """Return how many seconds plain TCP takes for as many bytes."""
    with socket.create_server((HERE, BULK_PORT)) as server:
        script = f"head -c {size_bytes} /dev/zero >/dev/tcp/{HERE}/{BULK_PORT}"
        sender = there.start("bash", "-c", script)
        peer, _ = server.accept()
        began = time.perf_counter()
        with peer:
            while peer.recv(1 << 20):
                pass
        took_s = time.perf_counter() - began
        sender.wait()
        return took_s


def peer_seconds(there: There, source: Path, target: Path) -> tuple[str, float]:
    """Copy a folder over the link; return the program's name and the seconds."""
    target.mkdir()
    try:
        if shutil.which("rsync"):
            return "rsync", rsync_seconds(there, source, target)
        return "tar", tar_seconds(there, source, target)
    finally:
        shutil.rmtree(target)


def rsync_seconds(there: There, source: Path, target: Path) -> float:
    config = target.with_suffix(".conf")
    config.write_text(f"use chroot = no\nuid = 0\ngid = 0\n[to]\npath = {target}\nread only = no\n")
    daemon = subprocess.Popen(
        ["rsync", "--daemon", "--no-detach", f"--address={HERE}", f"--port={BULK_PORT}", f"--config={config}"]
    )
    try:
        until(lambda: socket.socket().connect_ex((HERE, BULK_PORT)) == 0)
        began = time.perf_counter()
        copy = there.start("rsync", "-rlt", "--whole-file", f"{source}/", f"rsync://{HERE}:{BULK_PORT}/to/")
        if copy.wait():
            raise SystemExit("rsync failed")
        return time.perf_counter() - began
    finally:
        daemon.terminate()
        daemon.wait()


def tar_seconds(there: There, source: Path, target: Path) -> float:
    with socket.create_server((HERE, BULK_PORT)) as server:
        script = f"tar -C {source} -c . >/dev/tcp/{HERE}/{BULK_PORT}"
        began = time.perf_counter()
        sender = there.start("bash", "-c", script)
        peer, _ = server.accept()
        with peer:
            subprocess.run(["tar", "-C", str(target), "-x"], stdin=peer.fileno(), check=True)
        sender.wait()
        return time.perf_counter() - began


# --- at the other end -------------------------------------------------------------------------------


def client(what: str, *arguments: str) -> dict:
    return push(*arguments) if what == "push" else asyncio.run(fetch(*arguments))


def since(began: float, cpu: float) -> dict:
    """Return time and CPU time, without imports, which a kernel and a data set agent have done before."""
    return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


def push(source: str, name: str) -> dict:
    from minicluster.client.client import JobServiceClient
    from minicluster.datasets.folder import scan
    from minicluster.datasets.push import Push

    service = JobServiceClient(URL, TOKEN)
    began, cpu = time.perf_counter(), time.process_time()
    work = Push(scan(Path(source)), service, lambda now: None)
    made = work.run(name, None)
    took = since(began, cpu)
    pieces = work.so_far.sent_pieces
    return {"manifest": made.manifest_sha256, "size": made.size_bytes, "pieces": pieces, **took}


async def fetch(manifest: str, size: str, folder: str) -> dict:
    """Fetch a data set into an empty cache, as a node's data set agent does."""
    from minicluster.runtime.node.cache import Cache
    from minicluster.runtime.node.client import DataAgentClient
    from minicluster.runtime.node.work import DataWork
    from minicluster.wire import DataOrder, DataSetState
    from minicluster_hub.engines.node_tokens import NodeTokens

    secret = Path(folder).parent.joinpath("cluster/service/keeper_token").read_bytes().hex()
    token = NodeTokens(secret).issue(["node-1"])
    cache, link = Cache(Path(folder), token), DataAgentClient([URL], token)
    cache.open()
    order = DataOrder(
        name="bench", folder=manifest[:40], manifest_sha256=manifest, size_bytes=int(size), attempt=1
    )
    work = DataWork(order, cache, link, lambda: (), lambda: None)
    began, cpu = time.perf_counter(), time.process_time()
    await work.run()
    took = since(began, cpu)
    await link.close()
    if work.standing.standing is not DataSetState.READY:
        raise SystemExit(work.standing.detail)
    cache.remove(order.folder)
    return took


if __name__ == "__main__":
    main()
