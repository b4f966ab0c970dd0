"""The chart gives the job service the rights that its calls need, and no others."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.kubernetes.engine import KubernetesEngine
from minicluster_hub.engines.node_tokens import NodeTokens

from ...patience import eventually
from .kubernetes_api import KubernetesServer

ROLES = (
    Path(__file__).resolve().parents[3]
    / "hub_ext/minicluster_hub/engines/kubernetes/chart/templates/rbac.yaml"
)
RULE = re.compile(r"resources: \[(\S+)\]\n +verbs: \[(.+)\]")
NAMESPACE = "/api/v1/namespaces/jobs"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[KubernetesServer]:
    made = KubernetesServer(("pc-1", "pc-2"))
    await made.start(tmp_path)
    yield made
    await made.stop()


@pytest.fixture
async def engine(server: KubernetesServer, tmp_path: Path) -> AsyncIterator[KubernetesEngine]:
    made = KubernetesEngine(
        kubeconfig=str(tmp_path / "kubeconfig"),
        namespace="jobs",
        image="notebook",
        data_storage_class="on-the-node",
    )
    await made.open()
    yield made
    await made.close()


def granted() -> set[tuple[str, str]]:
    rules = RULE.findall(ROLES.read_text())
    return {(resource, verb) for resource, verbs in rules for verb in verbs.split(", ")}


async def run_a_task(server: KubernetesServer, engine: KubernetesEngine) -> None:
    """Start a task whose first answer is lost, read why it ended, and end it."""
    server.loses_answer_to = f"POST {NAMESPACE}/pods"
    await engine.start(TaskLaunch(12, 4, "ada", "pc-1", (0,), "token", ("http://service/",)))
    ended = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    server.change(f"{NAMESPACE}/pods", "minicluster-task-12", phase="Failed", containerStatuses=[ended])
    await eventually(lambda: not engine.tasks()[12].alive)
    await engine.end(12)


async def run_a_lighthouse(server: KubernetesServer, engine: KubernetesEngine) -> None:
    assert engine.lighthouses is not None
    server.loses_answer_to = f"POST {NAMESPACE}/services"
    await engine.lighthouses.start(5)
    await engine.lighthouses.end(5)


async def run_data_set_agents(server: KubernetesServer, engine: KubernetesEngine) -> None:
    """Have an agent on each node; then a node leaves the cluster."""
    agents, tokens = engine.data_agents, NodeTokens("secret")
    assert agents is not None

    def ensured() -> int:
        agents.ensure_running(("http://service/",), tokens, needed=True)
        return len(server.names("pods"))

    await eventually(lambda: ensured() == 2)
    server.remove("/api/v1/nodes", "pc-2")
    await eventually(lambda: ensured() == 1)
    await eventually(lambda: len(server.names("persistentvolumeclaims")) == 1)


async def lead(engine: KubernetesEngine) -> None:
    assert engine.leader_lease is not None
    lease = engine.leader_lease("http://one/")
    assert await lease.take() and await lease.renew()
    await lease.close()


async def test_the_rights_of_the_chart_are_those_that_calls_need(
    server: KubernetesServer, engine: KubernetesEngine
) -> None:
    await run_a_task(server, engine)
    await run_a_lighthouse(server, engine)
    await run_data_set_agents(server, engine)
    await lead(engine)
    assert server.used == granted()
