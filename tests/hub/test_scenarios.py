"""The scenarios of all engines, on the engine `local`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.support.processes import signal_all, wait_gone

from .. import scenarios
from ..patience import WITHIN_S
from .conftest import Lab

pytestmark = pytest.mark.full("tests/hub and tests/browser keep these promises in the gate")


class LocalSite:
    nodes = ("node-1", "node-2", "node-3")
    package = ("", "")

    def __init__(self, lab: Lab, visitor: Visitor) -> None:
        self._lab = lab
        self.visitor = visitor

    @contextmanager
    def lost(self, node: str) -> Iterator[None]:
        """Kill all processes of a virtual node, since it is no machine that could be lost."""
        found = [
            one for one in self._lab.cluster.processes() if one.environ().get("MINICLUSTER_NODE") == node
        ]
        signal_all(found)
        wait_gone(found, WITHIN_S)
        yield

    async def allow(self, digest: str) -> None:
        raise AssertionError(f"{digest} cannot be published here")


@pytest.fixture
def site(lab: Lab, ada: Visitor) -> LocalSite:
    return LocalSite(lab, ada)


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda scenario: scenario.__name__)
async def test_it_works_on_processes_of_this_machine(site: LocalSite, scenario) -> None:
    await scenario(site)
