"""How long it takes to activate a policy, and to submit a job, by the job service's REST API.

The cluster is made by `./run`. The policy is the first custom policy of docs/scheduling.md: its process is
started, it is tried in the simulator, and activated. Then fifty jobs are submitted at once; the time for one
of them is printed without a bound. Prints one line per target.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from notebook import Cluster, running_cluster
from parts.targets import Target, close

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.login.accounts_file import FIRST_USER

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "scheduling.md"
SWAP_BOUND_S = 1.0
JOBS = 50
CELL = b"pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="swaps of each kind; the median counts")
    rounds = parser.parse_args().rounds
    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        running_cluster(Path(folder)) as cluster,
    ):
        own_s, built_in_s, submit_s = asyncio.run(measure(cluster, rounds))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; {rounds} rounds")
    print(f"a built-in policy: {built_in_s:.3f} s; one of {JOBS} jobs sent at once: {1000 * submit_s:.1f} ms")
    close([Target("policy_swap_s", own_s, SWAP_BOUND_S)])


async def measure(cluster: Cluster, rounds: int) -> tuple[float, float, float]:
    """Return the seconds of a switch to a custom policy, to a built-in policy, and of a submission."""
    found = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    own, folder = {"policy": "fewest"}, cluster.hub.settings.data_dir / "policies"
    folder.mkdir()
    (folder / "fewest.py").write_text(found.group(1) if found else "")
    async with Visitor(cluster.hub.settings.url, FIRST_USER) as visitor:
        await visitor.log_in(cluster.password)
        await visitor.http.get(SERVICE_PATH)
        took: dict[str, list[float]] = {"fewest": [], "fifo": []}
        for _ in range(rounds):
            for choice in (own, {"policy": "fifo"}):
                took[choice["policy"]].append(await timed(visitor, "PUT", "api/policy", json=choice))
        return statistics.median(took["fewest"]), statistics.median(took["fifo"]), await submitted_s(visitor)


async def submitted_s(visitor: Visitor) -> float:
    """Return the seconds per job when many are submitted at once."""
    sha256 = hashlib.sha256(CELL).hexdigest()
    await timed(visitor, "PUT", f"api/blobs/{sha256}", content=CELL)
    bodies = [
        {
            "idempotency_key": f"job-{number:05}",
            "spec": {"payload_sha256": sha256, "nodes": {"min": 1, "max": 1}},
        }
        for number in range(JOBS)
    ]
    began = time.perf_counter()
    await asyncio.gather(*(timed(visitor, "POST", "api/jobs", json=body) for body in bodies))
    return (time.perf_counter() - began) / JOBS


async def timed(visitor: Visitor, method: str, path: str, **arguments: Any) -> float:
    began = time.perf_counter()
    await visitor.call(method, f"{SERVICE_PATH}{path}", SERVICE_PATH, **arguments)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
