"""A machine of the lab as a node of Kubernetes: a kubelet beside its Docker Engine, and kube-proxy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...lab.machines import Node
from ...lab.machines.processes import end, process_of, start
from .control_plane import ControlPlane

PAUSE_IMAGE = "minilab/pause:1"
POD_NETWORK = "10.112.0.0/16"
_OWN_FOLDERS = ("/var/lib/kubelet", "/var/lib/dockershim", "/var/log/pods", "/var/log/containers")
"""Where kubelets have fixed paths: each machine gets its own."""
LEASE_S = 20
"""A kubelet renews its lease each quarter of it. The usual 40 s would be a long wait."""
_KERNEL = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""What a kubelet sets for the whole kernel if it is otherwise: it is shown these values instead."""


@dataclass(frozen=True)
class KubernetesNode:
    """others: the pods' networks on other nodes, by the nodes' addresses."""

    node: Node
    pods: str
    others: Mapping[str, str]
    plane: ControlPlane
    programs: Path

    @property
    def name(self) -> str:
        return self.node.name

    def power_on(self) -> None:
        """Switch the machine on, with its kubelet."""
        self.node.power_on()
        self.start()

    def start(self) -> None:
        """Start kubelet and kube-proxy on a machine that is on."""
        self._prepare()
        environment = self.node.engine.environment()
        for name, words in (("kubelet", self._kubelet()), ("kube-proxy", self._proxy())):
            if process_of(self._record(name)) is None:
                command = self.node.machine.inside(*words)
                start(command, self._record(name), self.node.machine.folder / f"{name}.log", environment)

    def kill(self) -> None:
        """Pull the power cord."""
        self.node.kill()
        for name in ("kubelet", "kube-proxy"):
            end(self._record(name))

    @property
    def volumes(self) -> Path:
        """The folder of its kubelet, with the pods' volumes."""
        return self.plane.folder / f"{self.name}-kubelet"

    def _record(self, name: str) -> Path:
        return self.node.machine.folder / f"{name}.process"

    def _prepare(self) -> None:
        """Give the machine its own folders, the kernel's settings, and ways to the pods of other nodes."""
        steps = ["set -e"]
        for folder in _OWN_FOLDERS:
            steps.append(f"mkdir -p {folder}; mountpoint -q {folder} || mount -t tmpfs tmpfs {folder}")
        for name, value in _KERNEL.items():
            shown = Path("/run/kernel", name)
            steps.append(f"mkdir -p {shown.parent}; echo {value} >{shown}")
            steps.append(f"mount --bind {shown} /proc/sys/{name}")
        steps += [f"ip route replace {pods} via {address}" for address, pods in self.others.items()]
        self.node.run(["sh", "-c", "\n".join(steps)])

    def _kubelet(self) -> Sequence[str | Path]:
        file, folder = self.plane.authority.file, self.node.machine.folder
        kubeconfig = self.plane.kubeconfig(self.name, f"system:node:{self.name}", "system:nodes")
        settings = self.plane.folder / f"{self.name}.kubelet"
        settings.write_text(json.dumps(_kubelet_settings(file("ca.crt"))))
        return [
            self.programs / "kubelet",
            f"--config={settings}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.node.address}",
            f"--root-dir={self.volumes}",
            f"--cert-dir={folder / 'kubelet-certificates'}",
            f"--volume-plugin-dir={folder / 'volume-plugins'}",
            "--container-runtime=docker",
            "--docker-endpoint=unix:///run/docker.sock",
            "--network-plugin=",
            f"--pod-infra-container-image={PAUSE_IMAGE}",
            "--maximum-dead-containers-per-container=0",
            "--minimum-container-ttl-duration=0s",
        ]

    def _proxy(self) -> Sequence[str | Path]:
        kubeconfig = self.plane.kubeconfig(f"{self.name}-proxy", "system:kube-proxy")
        return [
            self.programs / "kube-proxy",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={POD_NETWORK}",
            # As it is: the kernel is everybody's.
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            "--healthz-bind-address=127.0.0.1:10256",
            "--metrics-bind-address=127.0.0.1:10249",
        ]


def _kubelet_settings(authority: Path) -> dict[str, object]:
    return {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "authentication": {
            "x509": {"clientCAFile": str(authority)},
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        # Containers stay in their machine's control group, so that they end with the machine.
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "healthzPort": 0,
        "readOnlyPort": 0,
        "nodeLeaseDurationSeconds": LEASE_S,
        "nodeStatusUpdateFrequency": "2s",
        "syncFrequency": "5s",
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "clusterDNS": [],
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "kubeAPIQPS": 50,
        "kubeAPIBurst": 100,
    }


def forget_folders() -> None:
    """Remove the folders that were made for mounts; machines had their own there."""
    for folder in map(Path, _OWN_FOLDERS):
        with suppress(OSError):  # Somebody else's kubelet has something in it.
            folder.rmdir()
