"""Job services that share no database act one at a time, by a Lease: a suite for any API server.

A subclass has a fixture `kubeconfig` with the rights of the job service.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from minicluster_hub.control.leader_election import RENEW_S
from minicluster_hub.engines.kubernetes.api_client.client import KubernetesApi
from minicluster_hub.engines.kubernetes.api_client.paths import Paths
from minicluster_hub.engines.kubernetes.leader_lease import LEASE_S, KubernetesLeaderLease
from minicluster_hub.engines.kubernetes.names import Names
from minicluster_hub.leader_lease import LeaseLeadership
from minicluster_hub.store import NotLeading

JOBS = "jobs"
NEARLY_S, MORE_S = LEASE_S - 1, LEASE_S + 1


class Clock:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lease(kubeconfig: Path, name: str, clock: Clock, cluster: str, pod: str = "") -> KubernetesLeaderLease:
    api = KubernetesApi(str(kubeconfig))
    return KubernetesLeaderLease(api, Paths(JOBS), Names(cluster), f"http://{name}/", clock, pod)


class LeaderLeaseSuite:
    """Each test has a Lease of its own, named after a cluster."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    async def test_one_leads_and_the_other_takes_over_when_it_is_silent(
        self, kubeconfig: Path, clock: Clock
    ) -> None:
        first, second = (lease(kubeconfig, name, clock, "silent") for name in ("one", "two"))
        assert await first.take()
        assert not await second.take()
        holder, _ = await second.read()
        assert holder == "http://one/"
        clock.now += NEARLY_S
        assert await first.renew()
        clock.now += NEARLY_S
        assert not await second.take(), "it was renewed meanwhile"
        clock.now += MORE_S
        assert await second.take()
        assert not await first.renew()
        await first.close()
        await second.close()

    async def test_a_lease_that_is_released_is_taken_at_once(self, kubeconfig: Path, clock: Clock) -> None:
        first, second = (lease(kubeconfig, name, clock, "released") for name in ("one", "two"))
        assert await first.take()
        await first.close()
        assert await second.take()
        await second.close()

    async def test_a_service_that_was_killed_leads_at_once_when_it_is_back_in_its_pod(
        self, kubeconfig: Path, clock: Clock
    ) -> None:
        killed, elsewhere, again = (
            lease(kubeconfig, "one", clock, "killed", pod) for pod in ("uid-1", "uid-2", "uid-1")
        )
        assert await killed.take()
        assert not await elsewhere.take()
        assert await again.take()
        for one in (killed, elsewhere, again):
            await one.close()

    async def test_many_that_ask_at_once_get_one_leader(self, kubeconfig: Path, clock: Clock) -> None:
        leases = [lease(kubeconfig, f"s{number}", clock, "many") for number in range(6)]
        taken = await asyncio.gather(*(one.take() for one in leases))
        assert sum(taken) == 1
        for one in leases:
            await one.close()

    async def test_the_leader_election_hears_from_a_lease_that_it_lost(
        self, kubeconfig: Path, clock: Clock
    ) -> None:
        first, second = (lease(kubeconfig, name, clock, "lost") for name in ("one", "two"))
        leadership = LeaseLeadership(first, "http://one/", asyncio.get_running_loop())
        assert await asyncio.to_thread(leadership.take)
        assert not await second.take()
        clock.now += MORE_S
        assert await second.take()
        with pytest.raises(NotLeading):
            await asyncio.to_thread(leadership.renew)
        assert (await asyncio.to_thread(leadership.read)).holder == "http://two/"
        await asyncio.to_thread(leadership.close)
        await second.close()

    def test_the_service_waits_longer_than_it_renews(self) -> None:
        assert KubernetesLeaderLease.lease_s > 3 * RENEW_S
