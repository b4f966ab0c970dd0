"""etcd, the API server, the controller manager and the scheduler, as processes of this machine."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from ...lab.machines.processes import LabError, end, process_of, start, wait_for
from .certificates import Authority

CLUSTER_IPS, API_IP = "10.96.0.0/16", "10.96.0.1"
_PARTS = ("scheduler", "controller-manager", "apiserver", "etcd")


class ControlPlane:
    """address: at which kubelets and pods reach the API server; it listens nowhere else.

    folder: of its data, logs and certificates.
    """

    def __init__(self, programs: Path, folder: Path, address: str) -> None:
        self._programs = programs
        self.folder = folder
        self.address = address
        self.port = _free_port(address)
        self.url = f"https://{address}:{self.port}"
        self._etcd_port = _free_port("127.0.0.1")
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder)
        self.authority.issue("apiserver", "apiserver", names=(address, "127.0.0.1", API_IP, "kubernetes"))
        self.admin = self.kubeconfig("admin", "admin", "system:masters")

    def kubeconfig(self, name: str, user: str, group: str = "") -> Path:
        """Make a kubeconfig with a certificate of that user; return its file."""
        certificate, key = self.authority.issue(name, user, group)
        return self.write_kubeconfig(name, {"client-certificate": str(certificate), "client-key": str(key)})

    def write_kubeconfig(self, name: str, credentials: dict[str, str]) -> Path:
        """Make a kubeconfig with these credentials; return its file."""
        where = {"server": self.url, "certificate-authority": str(self.authority.file("ca.crt"))}
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": where}],
            "users": [{"name": name, "user": credentials}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": name}}],
            "current-context": "tests",
        }
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(document))
        return path

    def client(self) -> httpx.Client:
        """Return a client with an admin's rights; the caller closes it."""
        file = self.authority.file
        trust = ssl.create_default_context(cafile=str(file("ca.crt")))
        trust.load_cert_chain(file("admin.crt"), file("admin.key"))
        return httpx.Client(base_url=self.url, verify=trust, timeout=30, trust_env=False)

    def start(self, controllers: bool = True, scheduler: bool = True) -> None:
        """Start what is not running, and wait until the API server answers."""
        self._start("etcd", self._etcd())
        self._start("apiserver", self._apiserver())
        wait_for(self._is_ready, f"the API server, see {self.folder}/apiserver.log", 90, 0.1)
        if controllers:
            self._start("controller-manager", self._controller_manager())
        if scheduler:
            self._start("scheduler", self._scheduler())

    def kill(self, part: str) -> None:
        """Kill a part; `start` starts it again on the same data."""
        end(self._record(part), signal.SIGKILL)

    def pid(self, part: str) -> int:
        """Return the process id of a running part."""
        found = process_of(self._record(part))
        if found is None:
            raise LabError(f"the {part} of Kubernetes does not run, see {self.folder}/{part}.log")
        return found

    def stop(self) -> None:
        """End everything and remove the data."""
        for part in _PARTS:
            self.kill(part)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _record(self, part: str) -> Path:
        return self.folder / f"{part}.process"

    def _start(self, part: str, words: Sequence[str | Path]) -> None:
        if process_of(self._record(part)) is None:
            start(words, self._record(part), self.folder / f"{part}.log")

    def _is_ready(self) -> bool:
        self.pid("apiserver")
        try:
            with self.client() as client:
                return client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def _etcd(self) -> list[str | Path]:
        here = f"http://127.0.0.1:{self._etcd_port}"
        peers = f"http://127.0.0.1:{_free_port('127.0.0.1')}"
        return [
            self._programs / "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={here}",
            f"--advertise-client-urls={here}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ]

    def _apiserver(self) -> list[str | Path]:
        file = self.authority.file
        return [
            self._programs / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.port}",
            f"--client-ca-file={file('ca.crt')}",
            f"--tls-cert-file={file('apiserver.crt')}",
            f"--tls-private-key-file={file('apiserver.key')}",
            f"--kubelet-client-certificate={file('admin.crt')}",
            f"--kubelet-client-key={file('admin.key')}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={file('accounts.key')}",
            f"--service-account-signing-key-file={file('accounts.key')}",
            f"--service-cluster-ip-range={CLUSTER_IPS}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--watch-cache-sizes=pods#2000",
        ]

    def _controller_manager(self) -> list[str | Path]:
        file = self.authority.file
        config = self.kubeconfig("controller-manager", "system:kube-controller-manager")
        return [
            self._programs / "kube-controller-manager",
            f"--kubeconfig={config}",
            f"--root-ca-file={file('ca.crt')}",
            f"--service-account-private-key-file={file('accounts.key')}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--port=0",
            "--secure-port=0",
        ]

    def _scheduler(self) -> list[str | Path]:
        config = self.kubeconfig("scheduler", "system:kube-scheduler")
        words = ["--leader-elect=false", "--port=0", "--secure-port=0"]
        return [self._programs / "kube-scheduler", f"--kubeconfig={config}", *words]


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as free:
        return free.getsockname()[1]
