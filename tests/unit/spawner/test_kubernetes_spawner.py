"""Notebook servers on Kubernetes: bound to the node of their GPUs, which they give back at their end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes_asyncio import client

from minicluster.wire import ServerPlacement
from minicluster_spawner.kubernetes.spawner import MiniclusterKubeSpawner, bind

from .spawner_bench import StubLedger

NAMESPACE, IMAGE = "hub", "registry.lab/notebook@sha256:aa"
PLACE = ServerPlacement(
    id=1, owner="ada", server="", node="pc-2", slots=(0,), until=2000.0, environment={"PIP_INDEX_URL": "x"}
)


class StubPods:
    """The pods of a namespace, as KubeSpawner watches them, and the call by which it deletes one."""

    first_load_future = SimpleNamespace(done=lambda: True)

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}

    async def delete_namespaced_pod(self, name: str, namespace: str, **_: Any) -> None:
        del self.pods[f"{namespace}/{name}"]

    def put(self, name: str, **state: Any) -> None:
        """Put a server's pod there, with its container in that state."""
        container = {"name": "notebook", "ready": True, "state": state}
        self.pods[f"{NAMESPACE}/{name}"] = {
            "metadata": {"name": name},
            "spec": {"containers": [{"ports": [{"name": "notebook-port", "containerPort": 8888}]}]},
            "status": {"phase": "Running", "podIP": "10.1.0.9", "containerStatuses": [container]},
        }


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch) -> StubPods:
    """What KubeSpawner has in place of an API server."""
    made = StubPods()
    monkeypatch.setattr("kubespawner.spawner.load_config", lambda **_: None)
    monkeypatch.setattr("kubespawner.spawner.shared_client", lambda _kind: made)
    monkeypatch.setattr(MiniclusterKubeSpawner, "reflectors", {("pods", NAMESPACE): made})
    return made


@pytest.fixture
def ledger() -> StubLedger:
    """The server of `spawner_of` has GPUs."""
    made = StubLedger()
    made.taken.add(("ada", ""))
    return made


def spawner_of(ledger: StubLedger | None, **options: Any) -> MiniclusterKubeSpawner:
    """Return the spawner of a server that the hub knows. ledger: None: the hub has no token for it."""
    settings = {"minicluster_kubernetes_ledger": ledger} if ledger else {}
    made = MiniclusterKubeSpawner(
        user=SimpleNamespace(name="ada", id=1, url="/user/ada/", escaped_name="ada", settings=settings),
        hub=SimpleNamespace(public_host="", base_url="/hub/", api_url="http://hub:8081/hub/api"),
        namespace=NAMESPACE,
        **options,
    )
    made._server = SimpleNamespace(url="http://10.1.0.9:8888/user/ada/", base_url="/user/ada/")
    return made


def pod(affinity: client.V1Affinity | None = None) -> client.V1Pod:
    container = client.V1Container(name="notebook", env=[client.V1EnvVar(name="HOME", value="/home/mini")])
    return client.V1Pod(spec=client.V1PodSpec(containers=[container], affinity=affinity))


def terms_of(made: client.V1Pod) -> list[client.V1NodeSelectorTerm]:
    required = made.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    return required.node_selector_terms


def test_it_runs_on_its_node_until_its_time_is_over() -> None:
    made = pod()
    bind(made, PLACE, now=1400.0)
    (term,) = terms_of(made)
    assert [(one.key, one.values) for one in term.match_fields] == [("metadata.name", ["pc-2"])]
    assert made.spec.active_deadline_seconds == 600


def test_a_labs_own_terms_stay_and_each_gets_the_node() -> None:
    wanted = client.V1NodeSelectorRequirement(key="zone", operator="In", values=["a"])
    terms = [client.V1NodeSelectorTerm(match_expressions=[wanted]), client.V1NodeSelectorTerm()]
    required = client.V1NodeSelector(node_selector_terms=terms)
    affinity = client.V1Affinity(
        node_affinity=client.V1NodeAffinity(required_during_scheduling_ignored_during_execution=required)
    )
    made = pod(affinity)
    bind(made, PLACE, now=1400.0)
    assert all(term.match_fields[0].values == ["pc-2"] for term in terms_of(made))
    assert terms_of(made)[0].match_expressions == [wanted]


def test_variables_of_the_job_service_are_added_and_replace_none() -> None:
    made = pod()
    bind(made, PLACE.model_copy(update={"environment": {"PIP_INDEX_URL": "x", "HOME": "/other"}}), now=1400.0)
    found = {one.name: one.value for one in made.spec.containers[0].env}
    assert found == {"HOME": "/home/mini", "PIP_INDEX_URL": "x"}


def test_a_server_whose_time_is_nearly_over_still_gets_a_moment() -> None:
    made = pod()
    bind(made, PLACE, now=3000.0)
    assert made.spec.active_deadline_seconds == 1


async def test_a_server_that_runs_keeps_its_gpus(pods: StubPods, ledger: StubLedger) -> None:
    spawner = spawner_of(ledger)
    pods.put(spawner.pod_name, running={})
    assert await spawner.poll() is None and ledger.taken


@pytest.mark.parametrize("kept", [True, False])
async def test_a_server_that_ended_by_itself_gives_its_gpus_back(
    pods: StubPods, ledger: StubLedger, kept: bool
) -> None:
    """kept: an admin wants to look at the pods of servers that ended."""
    spawner = spawner_of(ledger, delete_stopped_pods=not kept)
    pods.put(spawner.pod_name, terminated={"exitCode": 3})
    assert await spawner.poll() == 3
    assert not ledger.taken and bool(pods.pods) == kept


async def test_a_server_whose_pod_somebody_deleted_gives_its_gpus_back(
    pods: StubPods, ledger: StubLedger
) -> None:
    assert await spawner_of(ledger).poll() == 1 and not ledger.taken


async def test_a_server_that_is_being_started_keeps_its_gpus_though_it_has_no_pod_yet(
    pods: StubPods, ledger: StubLedger
) -> None:
    spawner = spawner_of(ledger)
    spawner._spawn_pending = True
    assert await spawner.poll() == 1 and ledger.taken
    # The start fails: the hub asks once more, and stops nothing, as there is no pod.
    spawner._spawn_pending, spawner._stop_pending = False, True
    assert await spawner.poll() == 1 and not ledger.taken


async def test_a_stop_gives_gpus_back_once_the_pod_is_gone(pods: StubPods, ledger: StubLedger) -> None:
    spawner = spawner_of(ledger)
    pods.put(spawner.pod_name, running={})
    await spawner.stop()
    assert not pods.pods and not ledger.taken


async def test_a_hub_without_a_token_for_the_ledger_still_sees_that_a_server_ended(
    pods: StubPods, tmp_path: Path
) -> None:
    assert await spawner_of(None, ledger_token_file=str(tmp_path / "missing")).poll() == 1


async def test_a_profile_with_a_gpu_is_bound_to_the_node_of_the_ledger(pods: StubPods) -> None:
    ledger = StubLedger()
    spawner = spawner_of(ledger, extra_resource_limits={"nvidia.com/gpu": "1"})
    (term,) = terms_of(await spawner.get_pod_manifest())
    assert term.match_fields[0].values == ["pc-1"] and ledger.taken == {("ada", "")}


async def test_a_server_without_gpus_is_bound_to_no_node(pods: StubPods) -> None:
    ledger = StubLedger()
    made = await spawner_of(ledger).get_pod_manifest()
    assert made.spec.affinity is None and not ledger.taken


def test_jobs_of_a_server_run_in_its_image_if_that_has_a_digest(pods: StubPods) -> None:
    env = spawner_of(None, image=IMAGE).get_env()
    assert env["MINICLUSTER_IMAGE"] == IMAGE and env["JUPYTERHUB_USER"] == "ada"


def test_an_image_without_a_digest_is_not_that_of_its_jobs(pods: StubPods) -> None:
    """Its tag may mean another image tomorrow, or on another node."""
    assert "MINICLUSTER_IMAGE" not in spawner_of(None, image="registry.lab/notebook:dev").get_env()
