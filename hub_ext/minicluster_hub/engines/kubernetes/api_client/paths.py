"""Where the API has what the engine makes: pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

NODES = "/api/v1/nodes"


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths of the kinds of objects in a namespace, and of single objects."""

    namespace: str

    def _core(self, kind: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}"

    @property
    def pods(self) -> str:
        return self._core("pods")

    @property
    def secrets(self) -> str:
        return self._core("secrets")

    @property
    def services(self) -> str:
        return self._core("services")

    @property
    def claims(self) -> str:
        return self._core("persistentvolumeclaims")

    @property
    def network_policies(self) -> str:
        return f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies"

    @property
    def leases(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    def pod(self, name: str) -> str:
        return _one(self.pods, name)

    def secret(self, name: str) -> str:
        return _one(self.secrets, name)

    def service(self, name: str) -> str:
        return _one(self.services, name)

    def claim(self, name: str) -> str:
        return _one(self.claims, name)

    def network_policy(self, name: str) -> str:
        return _one(self.network_policies, name)

    def lease(self, name: str) -> str:
        return _one(self.leases, name)


def _one(kind: str, name: str) -> str:
    return f"{kind}/{quote(name, safe='')}"
