"""From a cell to its first DDP step on Kubernetes: cold and warm, against the engine `local`.

Kubernetes runs on three machines of the lab (tests/kubernetes/lab), with its own scheduler and kubelets.
Only ratios are meaningful. The images are built first, which takes minutes. Prints a table and one line per
target.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from notebook import running_cluster
from parts.targets import Target, close
from slurm import Times, cells, on_processes

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.kubernetes.hub import service_config
from tests.kubernetes.lab.build import missing
from tests.kubernetes.lab.cluster import KubernetesCluster
from tests.kubernetes.lab.storage import make_volumes
from tests.lab.machines.images import build_product

COLD_BOUND = 2.0
"""A cold cell on Kubernetes against one on the engine `local`: pods, volumes and containers are made."""
WARM_BOUND = 1.5
"""A warm cell: Kubernetes has no part in it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the median counts")
    rounds = parser.parse_args().rounds
    if reason := missing():
        raise SystemExit(reason)
    times: Times = defaultdict(list)
    _, image = build_product()
    with KubernetesCluster([image]) as cluster, tempfile.TemporaryDirectory() as folder:
        make_volumes(cluster)
        asyncio.run(on_kubernetes(cluster, image, Path(folder), rounds, times))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(on_processes(Path(folder), rounds, times))
    medians = {name: statistics.median(found) for name, found in times.items()}
    print("\n".join(f"{name:40} {seconds:8.3f} s" for name, seconds in medians.items()))
    for what in ("cold", "warm"):
        more_s = medians[f"kubernetes, {what}"] - medians[f"local, {what}"]
        print(f"a {what} cell on Kubernetes takes {more_s:.3f} s more than locally")
    close(
        Target(
            f"kubernetes_{what}_to_local", medians[f"kubernetes, {what}"] / medians[f"local, {what}"], bound
        )
        for what, bound in (("cold", COLD_BOUND), ("warm", WARM_BOUND))
    )


async def on_kubernetes(
    cluster: KubernetesCluster, image: str, folder: Path, rounds: int, times: Times
) -> None:
    file = service_config(cluster, image, folder)
    with running_cluster(folder, ("--keep-warm-s=3", f"--config={file}"), engine="kubernetes") as running:
        async with running.notebook() as notebook:
            await cells(notebook, "kubernetes", rounds, times)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
