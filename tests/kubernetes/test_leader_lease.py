"""Job services that share no database act one at a time, by a Lease of a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..service.engines.leader_lease_suite import LeaderLeaseSuite
from .lab.cluster import KubernetesCluster


class TestLeaderLease(LeaderLeaseSuite):
    @pytest.fixture(scope="class")
    def kubeconfig(self, cluster: KubernetesCluster) -> Path:
        return cluster.service_kubeconfig()
