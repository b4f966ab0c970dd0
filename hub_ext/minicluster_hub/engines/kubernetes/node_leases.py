"""Which nodes are silent: each kubelet renews a lease, several times before Kubernetes counts it as over.

Kubernetes itself calls a node lost after 40 s or more, which is long for a job that waits for its rank.
"""

from __future__ import annotations

from collections.abc import Callable

PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_PART = 0.4
"""A kubelet renews its lease after a quarter of its duration. One that is this part late missed a renewal."""


class NodeLeases:
    """When each node last renewed its lease, by our clock: so no node's clock counts.

    A node is silent if others renewed theirs meanwhile. So when the API server, or our connection to it, is
    away, no node is.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._renewed_at: dict[str, float] = {}
        self._limits_s: dict[str, float] = {}
        self._newest = 0.0

    def renewed(self, node: str, duration_s: float) -> None:
        """Note that a node has just renewed its lease of this duration."""
        self._newest = self._renewed_at[node] = self._clock()
        self._limits_s[node] = _PART * duration_s

    def listed(self, durations_s: dict[str, float]) -> None:
        """Begin anew with these nodes: what they did until now was not seen."""
        self._renewed_at.clear()
        for node, duration_s in durations_s.items():
            self.renewed(node, duration_s)

    def silent(self, node: str) -> bool:
        """Tell whether a node missed its time; one without a lease never does."""
        at = self._renewed_at.get(node)
        return at is not None and self._newest - at > self._limits_s[node]
