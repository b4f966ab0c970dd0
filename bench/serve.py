"""Requests to a served model, against LitServe with the same model started by hand and asked directly.

Both servers are there all the time, and the same clients ask them in turn: 1, 16 and 128 of them, several
rounds, each round in the other order. The ratio of the p50 of each round is taken, and the median of these
counts. The front is asked at the job service's port, as the hub's proxy asks it. A third line has the replica
without the front: what it differs by is what HAProxy costs. Then what is lost when a replica is killed under
load, and when the version changes. Prints tables, and one line per target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
from notebook import Cluster, Notebook, running_cluster
from parts.http_crowd import Crowd, Question, ask_all
from parts.targets import Target, close

from minicluster_hub.serving.routing import SECRET_HEADER, replica_secret

CLIENTS = (1, 16, 128)
P50_BOUND = 1.15
NUMBERS = [[0.5] * 64]
BODY = json.dumps(NUMBERS).encode()
ANSWERS = "/services/minicluster/answers/admin/digits/predict"
MODEL = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
x = torch.rand(1, 64)
"""
SERVE = "%serve net --name digits --example x --requests 256"
READY_S = 60.0
FRONT, DIRECT, BY_HAND = "%serve", "its replica", "by hand"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        running_cluster(Path(folder), nodes=3) as cluster,
    ):
        targets = asyncio.run(measured(cluster, given.rounds, given.seconds))
    close(targets)


async def measured(cluster: Cluster, rounds: int, seconds: float) -> list[Target]:
    async with cluster.notebook() as notebook:
        await notebook.run(MODEL)
        await notebook.run(SERVE)
        ours = await front(cluster, notebook)
        model = await details(notebook, lambda found: found["model"]["ready"] == 1)
        with by_hand() as peer:
            asked = {FRONT: ours, DIRECT: direct(cluster, model["model"]["id"]), BY_HAND: peer}
            check_same(asked)
            targets = [await compared(asked, clients, rounds, seconds) for clients in CLIENTS]
        lost = await killed(notebook, ours)
        dropped = await changed(notebook, ours)
        await notebook.run("%serve stop digits")
    return [*targets, Target("lost_by_a_kill", lost, 0), Target("lost_by_a_change", dropped, 0)]


# --- who is asked ---------------------------------------------------------------------------------


async def front(cluster: Cluster, notebook: Notebook) -> Question:
    """Return a request that HAProxy takes: its token was asked about."""
    token = (await notebook.kernel.evaluate("__import__('os').environ['JUPYTERHUB_API_TOKEN']")).strip("'")
    url = f"http://127.0.0.1:{cluster.hub.settings.ports.service}{ANSWERS}"
    asked = Question(url, BODY, {"Authorization": f"Bearer {token}"})
    await ask_all(asked, 1, 0.5)
    return asked


def direct(cluster: Cluster, model_id: int) -> Question:
    """Return the same request to the replica itself."""
    secret = (cluster.hub.settings.data_dir / "service" / "serving_secret").read_bytes()
    headers = {SECRET_HEADER: replica_secret(secret, model_id)}
    for port in _ports_of_ranks():
        asked = Question(f"http://127.0.0.1:{port}/predict", BODY, headers)
        with suppress(OSError, ValueError, HTTPException):
            answer(asked)
            return asked
    raise SystemExit("no rank answers: the replica was not found")


def _ports_of_ranks() -> Iterator[int]:
    for zygote in zygotes():
        for process in zygote.children(recursive=True):
            with suppress(psutil.Error):
                for one in process.net_connections("tcp"):
                    if one.status == psutil.CONN_LISTEN:
                        yield one.laddr.port


def zygotes() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "minicluster.runtime.rank.zygote" in process.cmdline():
                yield process


@contextmanager
def by_hand() -> Iterator[Question]:
    """Run LitServe with the same model; yield a request to it once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(__file__).with_name("peers") / "litserve_by_hand.py"
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, str(program), str(port)], stdout=quiet, stderr=quiet)
    try:
        asked = Question(f"http://127.0.0.1:{port}/predict", BODY)
        until = time.monotonic() + READY_S
        while not answers(asked):
            if time.monotonic() > until or process.poll() is not None:
                raise SystemExit("LitServe by hand does not start")
            time.sleep(0.1)
        yield asked
    finally:
        for one in (*psutil.Process(process.pid).children(recursive=True), process):
            with suppress(psutil.Error):
                one.kill()
        process.wait()


def answers(asked: Question) -> bool:
    try:
        answer(asked)
    except OSError:
        return False
    return True


def answer(asked: Question) -> list[list[float]]:
    """Return the answer to a request. Raises OSError, ValueError."""
    headers = {"Content-Type": "application/json", **asked.headers}
    request = urllib.request.Request(asked.url, asked.body, headers)
    with urllib.request.urlopen(request, timeout=10) as found:
        return json.load(found)


def check_same(asked: dict[str, Question]) -> None:
    """End the program unless all answer the same: else they would not do the same work."""
    found = {name: [round(value, 4) for value in answer(one)[0]] for name, one in asked.items()}
    if len({tuple(values) for values in found.values()}) != 1:
        raise SystemExit(f"these are not the same model: {found}")


# --- times ----------------------------------------------------------------------------------------


async def compared(asked: dict[str, Question], clients: int, rounds: int, seconds: float) -> Target:
    """Print what so many clients saw; return the ratio of p50 to the server by hand."""
    found: dict[str, list[Crowd]] = {name: [] for name in asked}
    for number in range(rounds):
        turn = [*asked] if number % 2 == 0 else [*reversed(asked)]
        for name in turn:
            found[name].append(await ask_all(asked[name], clients, seconds))
    print(f"{clients:>4} clients   p50 ms   p99 ms  requests/s  p50 ratio  refused")
    for name, crowds in found.items():
        print(
            f"{name:>12} {1e3 * median(crowds, 0.5):>8.2f} {1e3 * median(crowds, 0.99):>8.2f} "
            f"{statistics.median(crowd.per_s for crowd in crowds):>11.0f} "
            f"{ratio(crowds, found[BY_HAND]):>10.3f} {sum(len(crowd.refused) for crowd in crowds):>8}",
            flush=True,
        )
    return Target(f"p50_ratio_{clients}", ratio(found[FRONT], found[BY_HAND]), P50_BOUND)


def median(crowds: list[Crowd], share: float) -> float:
    return statistics.median(crowd.percentile(share) for crowd in crowds)


def ratio(crowds: list[Crowd], others: list[Crowd]) -> float:
    """Return the median of the rounds' ratios: what slows the machine down slows both of a round down."""
    pairs = zip(crowds, others, strict=True)
    return statistics.median(one.percentile(0.5) / other.percentile(0.5) for one, other in pairs)


# --- losses ---------------------------------------------------------------------------------------


async def killed(notebook: Notebook, ours: Question) -> int:
    """Return how many requests failed while a replica of two was killed."""
    await notebook.run("%serve scale digits 2")
    model = await details(notebook, lambda found: found["model"]["ready"] == 2)
    over = asyncio.Event()
    asking = asyncio.create_task(ask_all(ours, 16, 120.0, over))
    await asyncio.sleep(1.0)
    _kill_one_replica()
    before = _jobs(model)
    await details(notebook, lambda found: found["model"]["ready"] == 2 and _jobs(found) != before)
    over.set()
    return _shown("a replica was killed", await asking)


def _kill_one_replica() -> None:
    """Kill a rank that serves, with all its processes."""
    for zygote in zygotes():
        # The other child is the store, which has no children of its own.
        for rank in [child for child in zygote.children() if child.children()]:
            for one in (*rank.children(recursive=True), rank):
                with suppress(psutil.Error):
                    one.kill()
            return
    raise SystemExit("there is no replica to kill")


def _jobs(found: dict[str, Any]) -> set[int]:
    return {one["job_id"] for one in found["replicas"]}


async def changed(notebook: Notebook, ours: Question) -> int:
    """Return how many requests failed while a new version took over, and while the old one came back."""
    over = asyncio.Event()
    asking = asyncio.create_task(ask_all(ours, 16, 240.0, over))
    await notebook.run(SERVE)
    await notebook.run("%serve back digits")
    await details(notebook, lambda found: found["model"]["serving"] == 1 and len(found["replicas"]) == 2)
    over.set()
    return _shown("two changes of version", await asking)


def _shown(what: str, crowd: Crowd) -> int:
    print(f"{what}: {len(crowd.times_s)} answers, {len(crowd.refused)} others {sorted(set(crowd.refused))}")
    return len(crowd.refused)


async def details(notebook: Notebook, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the model once it is as wanted."""
    model_id = (await notebook.ask_service("api/models"))["models"][0]["id"]
    async with asyncio.timeout(3 * READY_S):
        while True:
            found = await notebook.ask_service(f"api/models/{model_id}")
            if wanted(found):
                return found
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    main()
