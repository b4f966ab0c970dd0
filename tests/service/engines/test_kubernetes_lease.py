"""Job services that share no database act one at a time, by a Lease (here of a stand-in)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .kubernetes_api import KubernetesServer
from .leader_lease_suite import JOBS, Clock, LeaderLeaseSuite, lease


class TestLeaderLease(LeaderLeaseSuite):
    @pytest.fixture
    def server(self) -> KubernetesServer:
        return KubernetesServer(())

    @pytest.fixture
    async def kubeconfig(self, server: KubernetesServer, tmp_path: Path) -> AsyncIterator[Path]:
        yield Path(await server.start(tmp_path))
        await server.stop()

    async def test_a_renewal_whose_answer_is_lost_is_no_lost_lead(
        self, server: KubernetesServer, kubeconfig: Path, clock: Clock
    ) -> None:
        """The renewal is sent again, with a version that is no longer the newest."""
        first = lease(kubeconfig, "one", clock, "answers")
        assert await first.take()
        server.loses_answer_to = f"PUT /apis/coordination.k8s.io/v1/namespaces/{JOBS}/leases/answers-leader"
        assert await first.renew()
        assert not server.loses_answer_to
        await first.close()
