"""A real hub beside the lab's Kubernetes: notebook servers and tasks are pods, the job service is a process.

A hub in a pod could not be reached by name, since nothing in the lab serves names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from minicluster_hub.cluster.plan.certificates import make_ca_and_cert
from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.visitor import Visitor

from ..hub.clusters import RunningCluster, free_port
from ..service.publishing.index import Index
from .lab.cluster import JOBS, PLATFORM, KubernetesCluster
from .lab.storage import STORAGE_CLASS

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_HUB = """
from minicluster_hub.configure import configure
c = get_config()
settings = configure(c, engine="kubernetes", service_args=("--config={service}",))
c.JupyterHub.hub_bind_url = f"http://{address}:{{settings.ports.hub}}"
c.JupyterHub.spawner_class = "minicluster_spawner.kubernetes.spawner.MiniclusterKubeSpawner"
c.KubeSpawner.namespace = "{namespace}"
c.KubeSpawner.image = "{image}"
c.KubeSpawner.cmd = ["minicluster-singleuser"]
c.KubeSpawner.uid = c.KubeSpawner.fs_gid = 1000
c.KubeSpawner.node_selector = {{"kubernetes.io/hostname": "{node}"}}
c.KubeSpawner.start_timeout = 300
c.Spawner.environment.update({pip})
"""
_SERVICE = """
c = get_config()
c.MiniclusterHub.agents_bind_url = "https://{address}:{port}"
c.MiniclusterHub.tls_cert_file = "{folder}/service.crt"
c.MiniclusterHub.tls_key_file = "{folder}/service.key"
c.MiniclusterHub.tls_ca_file = "{folder}/ca.crt"
c.MiniclusterHub.pip_index_url = "{index}"
c.MiniclusterHub.keep_warm_s = 3.0
c.RegistrySettings.url = "http://{registry}"
c.RegistrySettings.name = "{registry}"
c.KubernetesEngine.kubeconfig = "{kubeconfig}"
c.KubernetesEngine.namespace = "{namespace}"
c.KubernetesEngine.cluster = "cells"
c.KubernetesEngine.image = "{image}"
c.KubernetesEngine.service_ca_file = "{folder}/ca.crt"
c.KubernetesEngine.verify_gpus = False
c.KubernetesEngine.data_storage_class = "{storage_class}"
c.KubernetesEngine.data_claim_size = "1Gi"
"""


def service_config(cluster: KubernetesCluster, image: str, folder: Path, index_url: str = "") -> Path:
    """Write the options of a job service for the cluster, with its certificate; return their file."""
    address = cluster.lab.root_address
    made = make_ca_and_cert(["minicluster", address])
    for name, text in (
        ("ca.crt", made.ca_pem),
        ("service.crt", made.cert_pem),
        ("service.key", made.key_pem),
    ):
        (folder / name).write_text(text)
    file = folder / "service_config.py"
    file.write_text(
        _SERVICE.format(
            address=address,
            image=digest_of(cluster, image),
            namespace=JOBS,
            folder=folder,
            port=free_port(),
            index=index_url,
            registry=cluster.lab.registry.host,
            kubeconfig=cluster.service_kubeconfig(),
            storage_class=STORAGE_CLASS,
        )
    )
    return file


def running(cluster: KubernetesCluster, image: str, index: Index, folder: Path) -> RunningCluster:
    """Start a hub with its data below a folder.

    The variables MINICLUSTER_TREE and KUBECONFIG must name the folder and an admin's kubeconfig.
    """
    address = cluster.lab.root_address
    hub = _HUB.format(
        address=address,
        image=digest_of(cluster, image),
        namespace=PLATFORM,
        service=service_config(cluster, image, folder, index.url),
        node=cluster.nodes[0].name,
        pip={"PIP_INDEX_URL": index.url, "PIP_TRUSTED_HOST": address},
    )
    (folder / "jupyterhub_config.py").write_text(hub)
    started = RunningCluster(folder / "data", "--host", address)
    started.url = f"http://{address}:{started.port}"
    return started


def digest_of(cluster: KubernetesCluster, image: str) -> str:
    """Return the reference of an image in the lab's registry, with its digest."""
    repository, _, tag = image.rpartition(":")
    address = f"http://{cluster.lab.registry.host}/v2/{repository}/manifests/{tag}"
    answer = httpx.head(address, headers={"Accept": _MANIFEST}, trust_env=False).raise_for_status()
    return f"{cluster.lab.registry.host}/{repository}@{answer.headers['Docker-Content-Digest']}"


class KubernetesSite:
    package = ("tinytints==1.0", "tinytints")

    def __init__(self, cluster: KubernetesCluster, visitor: Visitor) -> None:
        self._cluster = cluster
        self.visitor = visitor
        self.nodes = tuple(node.name for node in cluster.nodes)

    @contextmanager
    def lost(self, node: str) -> Iterator[None]:
        """Pull the power cord of a node."""
        self._cluster.node(node).kill()
        try:
            yield
        finally:
            self._cluster.bring_back(node)

    async def allow(self, digest: str) -> None:
        """The visitor is an admin."""
        path = f"{SERVICE_PATH}api/images/{digest}/allow"
        assert (await self.visitor.call("POST", path, SERVICE_PATH))["state"] == "allowed"
