"""The scenarios of all engines, on `swarm`: three hosts, and a user with a notebook server there."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ... import scenarios
from ..cluster import LabCluster
from ..faults.inject import cable_out
from ..people import People
from ..remains import check_nothing_left
from .catalogue import judge, retire_published
from .test_images import NODES

Scenario = Callable[[scenarios.Site], Coroutine[Any, Any, None]]


class SwarmSite:
    nodes = tuple(NODES)
    package = ("tinytints==1.0", "tinytints")

    def __init__(self, cluster: LabCluster, visitor: Any) -> None:
        self._cluster = cluster
        self.visitor = visitor

    @contextmanager
    def lost(self, node: str) -> Iterator[None]:
        """Cut a machine off: it keeps running, and nobody hears it."""
        machine = next(one for one in self._cluster.lab.nodes if one.name == node)
        with cable_out(self._cluster, machine):
            yield

    async def allow(self, digest: str) -> None:
        async with self._cluster.person() as admin:
            assert (await judge(admin, digest, "allow"))["state"] == "allowed"


@pytest.fixture(autouse=True)
def as_before(offering: LabCluster) -> Iterator[None]:
    yield
    retire_published(offering)
    check_nothing_left(offering)


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda scenario: scenario.__name__)
async def test_it_works_on_three_hosts(offering: LabCluster, people: People, scenario: Scenario) -> None:
    # On the first machine, which no scenario loses: its notebook server goes on.
    async with people.at_work("selma", node=offering.first.name) as selma:
        await scenario(SwarmSite(offering, selma.visitor))
