"""Notebook servers on Kubernetes: a pod with GPUs is bound to where the job service leased them."""

from __future__ import annotations

from kubernetes_asyncio import client

from minicluster.wire import ServerPlacement
from minicluster_spawner.kubernetes.spawner import bind

PLACE = ServerPlacement(
    id=1, owner="ada", server="", node="pc-2", slots=(0,), until=2000.0, environment={"PIP_INDEX_URL": "x"}
)


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
