"""A training loses a node: the time until its next step, and the number of repeated steps.

Minicluster runs as by `./run`, with three virtual nodes, accessed through the hub's proxy. The peer is
torchrun with its defaults (three agents, c10d rendezvous, --max-restarts), in turn on the same machine. The
fault is SIGKILL or SIGSTOP to all of a node's processes, every second time to the node of rank 0. Prints a
table and one line per target.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from notebook import Cluster, running_cluster
from parts import recovery_torchrun
from parts.recovery_lives import NEVER_S, SIGNALS, Recovery, strike, until
from parts.targets import Target, close

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.login.accounts_file import FIRST_USER

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.lab.jobs import Jobs
from tests.lab.training import EVERY, TRAINING, steps

BOUNDS_S = {"killed": 5.0, "frozen": 8.0}
RATIO_BOUND = 0.2
WITHIN_S = 60.0
OURS, PEER = "minicluster", "torchrun"
Found = dict[tuple[str, str], list[Recovery]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=4, help="times that each fault strikes; half rank 0's node"
    )
    parser.add_argument(
        "--peer-rounds", type=int, default=1, help="the same for torchrun: each takes minutes"
    )
    options = parser.parse_args()
    found: Found = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        running_cluster(Path(folder), ("--keep-warm-s=3",)) as cluster,
        our_jobs(cluster) as jobs,
    ):
        for number in range(options.rounds):
            for fault in SIGNALS:
                record(found, OURS, ours(jobs, Path(folder) / "data", fault, rank_0=number % 2 == 0))
    for number in range(options.peer_rounds):
        for fault in SIGNALS:
            with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder:
                first = number % 2 == 1
                record(found, PEER, recovery_torchrun.recover(Path(folder), fault, EVERY, first=first))
    print(table(found), end="\n\n", flush=True)
    close(targets(found))


def record(found: Found, who: str, recovery: Recovery) -> None:
    found[who, recovery.fault].append(recovery)
    took = f"no step within {NEVER_S:g} s" if recovery.never else f"{recovery.seconds:.2f} s"
    whose = " (its first node)" if recovery.first else ""
    print(f"{who}, {recovery.fault}{whose}: {took}, {recovery.lost_steps} again", file=sys.stderr, flush=True)


@contextmanager
def our_jobs(cluster: Cluster) -> Iterator[Jobs]:
    """Yield a user's jobs by REST, through the hub's proxy."""
    url = cluster.hub.settings.url
    headers = {"Authorization": f"token {asyncio.run(_token(url, cluster.password))}"}
    with httpx.Client(base_url=f"{url}{SERVICE_PATH}", headers=headers, trust_env=False, timeout=30) as http:
        yield Jobs(None, http)  # type: ignore[arg-type]


async def _token(url: str, password: str) -> str:
    async with Visitor(url, FIRST_USER) as visitor:
        await visitor.log_in(password)
        asked = {"note": "recovery", "expires_in": 7200}
        made: dict[str, Any] = await visitor.call(
            "POST", f"/hub/api/users/{FIRST_USER}/tokens", "/hub/", json=asked
        )
        return made["token"]


def ours(jobs: Jobs, data: Path, fault: str, *, rank_0: bool) -> Recovery:
    """Strike a node of a job on two to three nodes."""
    until(lambda: _is_free(jobs), WITHIN_S, "free node")
    job = jobs.submit(TRAINING, {"min": 2, "max": 3})
    try:
        until(lambda: len(steps(jobs, job, 1)) > 2 * EVERY, WITHIN_S, f"step of job {job}")
        victim = jobs.job(job)["nodes"][0 if rank_0 else -1]
        struck_at = strike(_processes(data, victim), fault)
        until(lambda: steps(jobs, job, 2), WITHIN_S, f"step of the next attempt:\n{jobs.history(job)}")
        before, after = steps(jobs, job, 1), steps(jobs, job, 2)
    finally:
        jobs.stop(job)
        jobs.wait(job)
    first = min(after)
    return Recovery(fault, rank_0, after[first] - struck_at, max(before) + 1 - first)


def _is_free(jobs: Jobs) -> bool:
    nodes = jobs.nodes().values()
    return len(nodes) == 3 and not any(slot.get("owner") for node in nodes for slot in node["slots"])


def _processes(data: Path, node: str) -> list[psutil.Process]:
    """Return all processes of the tasks on a virtual node."""
    found = []
    for process in psutil.process_iter():
        try:
            environ = process.environ()
        except psutil.Error:
            continue
        scratch = environ.get("MINICLUSTER_SCRATCH", "")
        if environ.get("MINICLUSTER_NODE") == node and scratch.startswith(str(data.resolve())):
            found.append(process)
    return found


def table(found: Found) -> str:
    head = f"{'seconds to the next step':28}{'times':>7}{'p50':>9}{'max':>9}{'steps again, max':>18}"
    return "\n".join([head, *(_row(who, fault, lives) for (who, fault), lives in found.items())])


def _row(who: str, fault: str, lives: list[Recovery]) -> str:
    seconds = sorted(life.seconds for life in lives)
    middle, most = (f"{value:.2f}" for value in (statistics.median(seconds), seconds[-1]))
    if any(life.never for life in lives):
        most = f"> {NEVER_S:g}"
        middle = most if all(life.never for life in lives) else middle
    again = max(life.lost_steps for life in lives)
    return f"{f'{who}, {fault}':28}{len(lives):>7}{middle:>9}{most:>9}{again:>18}"


def targets(found: Found) -> list[Target]:
    listed = []
    for fault, bound in BOUNDS_S.items():
        lives = found[OURS, fault]
        listed.append(Target(f"recovery_{fault}_s", max(life.seconds for life in lives), bound))
        listed.append(
            Target(f"recovery_{fault}_steps_again", max(life.lost_steps for life in lives), 2 * EVERY)
        )
        if peers := found.get((PEER, fault)):
            ratio = statistics.median(life.seconds for life in lives)
            ratio /= statistics.median(life.seconds for life in peers)
            listed.append(Target(f"recovery_{fault}_ratio_to_torchrun", ratio, RATIO_BOUND))
    return listed


if __name__ == "__main__":
    main()
