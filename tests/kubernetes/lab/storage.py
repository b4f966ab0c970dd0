"""Volumes on the nodes' own disks, made by hand: no provisioner is there that could make them."""

from __future__ import annotations

from typing import Any

from .cluster import KubernetesCluster

STORAGE_CLASS = "on-the-node"


def make_volumes(cluster: KubernetesCluster) -> None:
    """Make a storage class, and a volume of it on each node."""
    cluster.post("/apis/storage.k8s.io/v1/storageclasses", _storage_class())
    for node in cluster.nodes:
        folder = node.plane.folder / f"{node.name}-data-sets"
        node.node.run(["sh", "-c", f"mkdir -p {folder} && chown 1000:1000 {folder}"])
        cluster.post("/api/v1/persistentvolumes", _volume(node.name, str(folder)))


def _storage_class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _volume(node: str, folder: str) -> dict[str, Any]:
    chosen = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"data-sets-{node}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "local": {"path": folder},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [chosen]}]}},
        },
    }
