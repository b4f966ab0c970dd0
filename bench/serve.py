"""Requests to a served model, against LitServe with the same model started by hand and asked directly.

With 1, 16 and 128 clients, in turn in one run on one machine, so only ratios are meaningful. Then what is
lost when a replica is killed under load, and when the version changes. The front is asked at the job
service's port, as the hub's proxy asks it. Prints a table, and one line per target.
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from notebook import Cluster, Notebook, running_cluster
from parts.http_crowd import Crowd, Question, ask_all
from parts.targets import Target, close

CLIENTS = (1, 16, 128)
P50_BOUND = 1.15
BODY = json.dumps([[0.5] * 64]).encode()
ANSWERS = "/services/minicluster/answers/admin/digits/predict"
MODEL = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
x = torch.rand(1, 64)
"""
SERVE = "%serve net --name digits --example x --requests 256 {more}"
READY_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each; the median counts")
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
        await notebook.run(SERVE.format(more=""))
        ours = await question(cluster, notebook)
        ratios = await compared(ours, rounds, seconds)
        lost = await killed(notebook, ours)
        dropped = await changed(notebook, ours)
        await notebook.run("%serve stop digits")
    targets = [Target(f"p50_ratio_{clients}", ratio, P50_BOUND) for clients, ratio in ratios.items()]
    return [*targets, Target("lost_by_a_kill", lost, 0), Target("lost_by_a_change", dropped, 0)]


async def question(cluster: Cluster, notebook: Notebook) -> Question:
    """Return a request that HAProxy takes: its token was asked about."""
    token = (await notebook.kernel.evaluate("__import__('os').environ['JUPYTERHUB_API_TOKEN']")).strip("'")
    url = f"http://127.0.0.1:{cluster.hub.settings.ports.service}{ANSWERS}"
    asked = Question(url, BODY, {"Authorization": f"Bearer {token}"})
    await ask_all(asked, 1, 0.5)
    return asked


async def compared(ours: Question, rounds: int, seconds: float) -> dict[int, float]:
    """Return the ratio of the medians of p50 by number of clients."""
    ratios: dict[int, float] = {}
    with by_hand() as port:
        peer = Question(f"http://127.0.0.1:{port}/predict", BODY)
        print(f"{'clients':>8} {'':>8} {'p50 ms':>8} {'p99 ms':>8} {'requests/s':>11}")
        for clients in CLIENTS:
            found: dict[str, list[Crowd]] = {"ours": [], "by hand": []}
            for _ in range(rounds):
                for name, asked in (("ours", ours), ("by hand", peer)):
                    found[name].append(await ask_all(asked, clients, seconds))
            for name, crowds in found.items():
                print(
                    f"{clients:>8} {name:>8} {1e3 * median(crowds, 0.5):>8.2f} "
                    f"{1e3 * median(crowds, 0.99):>8.2f} "
                    f"{statistics.median(crowd.per_s for crowd in crowds):>11.0f}",
                    flush=True,
                )
            ratios[clients] = median(found["ours"], 0.5) / median(found["by hand"], 0.5)
    return ratios


def median(crowds: list[Crowd], share: float) -> float:
    return statistics.median(crowd.percentile(share) for crowd in crowds)


@contextmanager
def by_hand() -> Iterator[int]:
    """Run LitServe with the same model; yield its port once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(__file__).with_name("peers") / "litserve_by_hand.py"
    process = subprocess.Popen(
        [sys.executable, str(program), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        time.sleep(1.0)
        yield port
    finally:
        for one in (*psutil.Process(process.pid).children(recursive=True), process):
            with suppress(psutil.Error):
                one.kill()
        process.wait()


async def killed(notebook: Notebook, ours: Question) -> int:
    """Return how many requests failed while a replica of two was killed."""
    await notebook.run("%serve scale digits 2")
    model = await details(notebook, lambda found: found["model"]["ready"] == 2)
    over = asyncio.Event()
    asking = asyncio.create_task(ask_all(ours, 16, 60.0, over))
    await asyncio.sleep(1.0)
    _kill_one_replica()
    gone = {one["job_id"] for one in model["replicas"]}
    await details(notebook, lambda found: found["model"]["ready"] == 2 and _jobs(found) != gone)
    over.set()
    crowd = await asking
    print(
        f"a replica was killed: {len(crowd.times_s)} answers, {len(crowd.refused)} others "
        f"{set(crowd.refused)}"
    )
    return len(crowd.refused)


def _kill_one_replica() -> None:
    """Kill a rank that serves, with all its processes."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any("minicluster.runtime.rank.zygote" in word for word in process.cmdline()):
                for rank in [child for child in process.children() if child.children()]:
                    for one in (rank, *rank.children(recursive=True)):
                        one.kill()
                    return


def _jobs(found: dict) -> set[int]:  # type: ignore[type-arg]
    return {one["job_id"] for one in found["replicas"]}


async def changed(notebook: Notebook, ours: Question) -> int:
    """Return how many requests failed while a new version took over, and while the old one came back."""
    over = asyncio.Event()
    asking = asyncio.create_task(ask_all(ours, 16, 120.0, over))
    await notebook.run(SERVE.format(more=""))
    await notebook.run("%serve back digits")
    await details(notebook, lambda found: found["model"]["serving"] == 1 and len(found["replicas"]) == 2)
    over.set()
    crowd = await asking
    print(
        f"two changes of version: {len(crowd.times_s)} answers, {len(crowd.refused)} others "
        f"{set(crowd.refused)}"
    )
    return len(crowd.refused)


async def details(notebook: Notebook, wanted) -> dict:  # type: ignore[no-untyped-def, type-arg]
    """Return the model once it is as wanted."""
    model_id = (await notebook.ask_service("api/models"))["models"][0]["id"]
    while True:
        found = await notebook.ask_service(f"api/models/{model_id}")
        if wanted(found):
            return found
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    main()
