"""The options of the engine `kubernetes`, and what all of its tasks have in common by them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from traitlets import Bool, Enum, Float, Integer, List, Unicode, default

from minicluster_hub.engines.base import Engine
from minicluster_hub.engines.kubernetes.cluster_view import NodeSettings
from minicluster_hub.engines.kubernetes.data_agents import DataVolumes
from minicluster_hub.engines.kubernetes.names import CLUSTER, Names
from minicluster_hub.engines.kubernetes.pods import PodSettings, toleration
from minicluster_hub.engines.kubernetes.queues.dialects import DIALECTS
from minicluster_hub.engines.kubernetes.spec import METADATA_SERVICE, TaskSettings

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class KubernetesOptions(Engine):
    """What an admin sets. In a pod, the API server is found by itself."""

    kubeconfig = Unicode(
        help="File with the API server's address and credentials; empty: the pod's service account."
    ).tag(config=True)
    context = Unicode(help="The context of the kubeconfig; empty: its current one.").tag(config=True)
    namespace = Unicode(help="Where pods are made; by default that of the pod that this runs in.").tag(
        config=True
    )
    cluster = Unicode(CLUSTER, help="This Minicluster's name, if a namespace has several.").tag(config=True)
    node_selector = Unicode(
        help="Labels of the nodes that run jobs, as in `kubectl get nodes --selector`; empty: all nodes."
    ).tag(config=True)
    tolerated_taints = List(
        Unicode(), help="Taints of nodes that are meant for jobs: KEY, KEY=VALUE or KEY=VALUE:EFFECT."
    ).tag(config=True)
    image = Unicode(help="Image of tasks, with its digest: REGISTRY/NAME@sha256:...").tag(config=True)
    images = List(Unicode(), help="Further images that a job may ask for with --image.").tag(config=True)
    pull_secrets = List(Unicode(), help="Secrets with the credentials of the images' registries.").tag(
        config=True
    )
    gpu_resource = Unicode("nvidia.com/gpu", help="What the device plugin calls a GPU.").tag(config=True)
    runtime_class = Unicode(
        help="RuntimeClass of pods with GPUs, where the nodes' default runtime does not show GPUs (nvidia)."
    ).tag(config=True)
    verify_gpus = Bool(
        True, help="End a task that does not see as many GPUs as it has; off for simulated GPUs."
    ).tag(config=True)
    shm_bytes = Integer(
        2 * 1024**3, help="Size of a task's /dev/shm in bytes; memory is taken only when it is used."
    ).tag(config=True)
    stop_grace_s = Float(
        1.0, help="Seconds that an agent gets to end its ranks before its pod is killed; whole ones."
    ).tag(config=True)
    memory_per_slot_bytes = Integer(
        0,
        help="The most memory that a task may take for each of its slots, in bytes; 0: the slot's share of "
        "what its node gives to pods, without the reserve.",
    ).tag(config=True)
    reserve_memory_bytes = Integer(
        2 * 1024**3,
        help="Memory of each node that jobs leave to other pods, in bytes; at most a quarter of the node.",
    ).tag(config=True)
    reserve_cpus = Float(
        0.5, help="CPU cores of each node that jobs leave to other pods; at most a quarter."
    ).tag(config=True)
    request_share = Float(
        0.0,
        min=0.0,
        max=1.0,
        help="The part of its limits of CPU and memory that a task requests. More protects jobs from "
        "other pods of the node; at 1 a job does not start beside them.",
    ).tag(config=True)
    disk_bytes = Integer(
        0,
        min=0,
        help="Most bytes that a task may write to its node's disk; 0: what the node's kubelet allows.",
    ).tag(config=True)
    blocked_networks = List(
        Unicode(),
        [METADATA_SERVICE],
        help="Networks that jobs do not reach, where the network plugin knows NetworkPolicies: those of the "
        "nodes and of the API server belong here.",
    ).tag(config=True)
    queue = Enum(
        ("none", "kueue", "volcano"),
        "none",
        help="Whose queue decides when a job starts: that of the job service (none), Kueue or Volcano.",
    ).tag(config=True)
    queue_name = Unicode("minicluster", help="The queue there: Kueue's LocalQueue, Volcano's Queue.").tag(
        config=True
    )
    data_claim = Unicode(
        help="A claim that all nodes can mount (ReadWriteMany), as the cache of data sets of all nodes."
    ).tag(config=True)
    data_storage_class = Unicode(
        help="Storage class on the nodes' own disks: each node then has a cache of data sets of its own. "
        "Without it and without data_claim, jobs read no data sets."
    ).tag(config=True)
    data_claim_size = Unicode("100Gi", help="Size of each node's cache of data sets.").tag(config=True)
    data_cache_bytes = Integer(
        0, min=0, help="Most bytes of data sets in a cache; 0: as much as its volume takes."
    ).tag(config=True)
    elect_leader = Bool(
        True,
        help="With SQLite, let job services act one at a time, by a Lease. While the API server is away for "
        "more than 15 s, none acts; without a Lease, two that run by mistake would both act.",
    ).tag(config=True)
    service_ca_file = Unicode(
        help="PEM file of the authority that signed the job service's certificate; empty for plain HTTP."
    ).tag(config=True)

    @default("namespace")
    def _default_namespace(self) -> str:
        return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else "default"

    @cached_property
    def names(self) -> Names:
        return Names(self.cluster)

    @cached_property
    def data_volumes(self) -> DataVolumes | None:
        """Where data sets are cached; None if nowhere."""
        if not (self.data_claim or self.data_storage_class):
            return None
        return DataVolumes(
            self.data_claim, self.data_storage_class, self.data_claim_size, self.data_cache_bytes
        )

    @cached_property
    def task_settings(self) -> TaskSettings:
        """What all tasks have in common."""
        return TaskSettings(
            pods=PodSettings(
                names=self.names,
                image=self.image,
                tolerations=tuple(map(toleration, self.tolerated_taints)),
                pull_secrets=tuple(self.pull_secrets),
                runtime_class=self.runtime_class,
                service_ca=Path(self.service_ca_file).read_text() if self.service_ca_file else "",
            ),
            shm_bytes=self.shm_bytes,
            gpu_resource=self.gpu_resource,
            verify_gpus=self.verify_gpus,
            stop_grace_s=self.stop_grace_s,
            memory_per_slot_bytes=self.memory_per_slot_bytes,
            reserve_memory_bytes=self.reserve_memory_bytes,
            reserve_cpus=self.reserve_cpus,
            request_share=self.request_share,
            disk_bytes=self.disk_bytes,
            data_cache=self.data_volumes is not None,
            data_claim=self.data_claim,
            blocked_networks=tuple(self.blocked_networks),
            scheduler=DIALECTS[self.queue].scheduler if self.queue in DIALECTS else "",
        )

    @property
    def node_settings(self) -> NodeSettings:
        """Which nodes are the cluster's, and what counts of them."""
        tolerated = frozenset(str(toleration(taint)["key"]) for taint in self.tolerated_taints)
        return NodeSettings(self.node_selector, self.gpu_resource, tolerated)

    @property
    def own_images(self) -> tuple[str, ...]:
        """The images that the options offer, the default one first."""
        return tuple(dict.fromkeys(image for image in (self.image, *self.images) if image))
