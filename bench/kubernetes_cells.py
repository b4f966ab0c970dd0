"""From a cell to its first DDP step on Kubernetes: cold, warm, against pods with torchrun, and locally.

Kubernetes runs on three machines of the lab (tests/kubernetes/lab), with its own scheduler and kubelets. By
hand means: a pod on each of three nodes whose command is torchrun, and a Service that leads to the first one.
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
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from launch import latest
from notebook import running_cluster
from parts.peer_runs import PEERS
from parts.targets import Target, close
from slurm import RANKS, Times, cells, on_processes

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.kubernetes.hub import digest_of, service_config
from tests.kubernetes.lab.build import missing
from tests.kubernetes.lab.cluster import JOBS, KubernetesCluster
from tests.kubernetes.lab.storage import make_volumes
from tests.lab.machines.images import build_product
from tests.lab.machines.processes import wait_for

COLD_BOUND = 2.0
"""A cold cell on Kubernetes against one on the engine `local`: pods, volumes and containers are made."""
WARM_BOUND = 1.5
"""A warm cell: Kubernetes has no part in it."""
BY_HAND_BOUND = 1.3
"""A cold cell against pods with torchrun by hand."""
BY_HAND, PEER, PORT = "pods with torchrun by hand", "by-hand", 29500
SERVICES, PODS = f"/api/v1/namespaces/{JOBS}/services", f"/api/v1/namespaces/{JOBS}/pods"
PEER_PODS = f"{PODS}?labelSelector=app={PEER}"
COMMAND = f"""printf %s "$STEP" >/tmp/step.py
exec python -m torch.distributed.run --nnodes={RANKS} --nproc-per-node=1 --node-rank="$NODE_RANK" \\
    --master-addr="$FIRST" --master-port={PORT} /tmp/step.py step
"""


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
        for _ in range(rounds):
            times[BY_HAND].append(by_hand(cluster, digest_of(cluster, image)))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(on_processes(Path(folder), rounds, times))
    medians = {name: statistics.median(found) for name, found in times.items()}
    print("\n".join(f"{name:40} {seconds:8.3f} s" for name, seconds in medians.items()))
    for what in ("cold", "warm"):
        more_s = medians[f"kubernetes, {what}"] - medians[f"local, {what}"]
        print(f"a {what} cell on Kubernetes takes {more_s:.3f} s more than locally")
    close(targets(medians))


def targets(medians: dict[str, float]) -> list[Target]:
    cold_s, warm_s = medians["kubernetes, cold"], medians["kubernetes, warm"]
    return [
        Target("kubernetes_cold_to_by_hand", cold_s / medians[BY_HAND], BY_HAND_BOUND),
        Target("kubernetes_cold_to_local", cold_s / medians["local, cold"], COLD_BOUND),
        Target("kubernetes_warm_to_local", warm_s / medians["local, warm"], WARM_BOUND),
    ]


async def on_kubernetes(
    cluster: KubernetesCluster, image: str, folder: Path, rounds: int, times: Times
) -> None:
    file = service_config(cluster, image, folder)
    with running_cluster(folder, ("--keep-warm-s=3", f"--config={file}"), engine="kubernetes") as running:
        async with running.notebook() as notebook:
            await cells(notebook, "kubernetes", rounds, times)


# By hand.


def by_hand(cluster: KubernetesCluster, image: str) -> float:
    """Run torchrun in a pod on each of three nodes; return the seconds until all ranks are done."""
    began = time.time()
    first = cluster.post(SERVICES, service())["spec"]["clusterIP"]
    try:
        for rank, node in enumerate(cluster.nodes):
            cluster.post(PODS, pod(rank, node.name, image, first))
        wait_for(lambda: all_over(cluster), BY_HAND, 300, 0.2)
        with cluster.plane.client() as client:
            logs = [client.get(f"{PODS}/{PEER}-{rank}/log").text for rank in range(RANKS)]
        return latest("\n".join(logs), RANKS) - began
    finally:
        cluster.delete(f"{PEER_PODS}&gracePeriodSeconds=0")
        cluster.delete(f"{SERVICES}/{PEER}")
        wait_for(lambda: not cluster.get(PEER_PODS)["items"], "the pods by hand to be gone", 60, 0.2)


def all_over(cluster: KubernetesCluster) -> bool:
    phases = [one["status"].get("phase") for one in cluster.get(PEER_PODS)["items"]]
    return len(phases) == RANKS and all(phase in ("Succeeded", "Failed") for phase in phases)


def service() -> dict[str, Any]:
    """Return the Service by which the other pods reach the first one, whose address they do not know."""
    spec = {"selector": {"app": PEER, "rank": "0"}, "ports": [{"port": PORT}]}
    return {"metadata": {"name": PEER}, "spec": spec}


def pod(rank: int, node: str, image: str, first: str) -> dict[str, Any]:
    """Return a pod with torchrun. The first one is at its own address: the Service may not lead back."""
    values = {"STEP": (PEERS / "ddp_step.py").read_text(), "NODE_RANK": str(rank), "OMP_NUM_THREADS": "1"}
    address = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} if rank == 0 else {"value": first}
    environment = [{"name": name, "value": value} for name, value in values.items()]
    container = {
        "name": "main",
        "image": image,
        "command": ["sh", "-c", COMMAND],
        "env": [*environment, {"name": "FIRST", **address}],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "containers": [container],
    }
    return {"metadata": {"name": f"{PEER}-{rank}", "labels": {"app": PEER, "rank": str(rank)}}, "spec": spec}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
