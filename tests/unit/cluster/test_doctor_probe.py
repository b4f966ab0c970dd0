"""The doctor's probe for each node: a container without privileges."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from minicluster_hub.api.ops import Health
from minicluster_hub.cluster.doctor import probe, specs
from minicluster_hub.cluster.doctor.facts import ClusterFacts, ServiceFacts, SwarmFacts
from minicluster_hub.cluster.doctor.messages import Target
from minicluster_hub.cluster.plan.choices import TLS_NONE, Choices
from minicluster_hub.cluster.plan.record import ClusterRecord

from ..engines.swarm_nodes import node


def test_the_probe_has_no_socket_no_rights_and_a_bound() -> None:
    facts = ClusterFacts(SwarmFacts("active", True), (node(1), node(2)))
    task = specs.task_for(facts, facts.nodes, "word")
    host, overlay = specs.host_service(task, "image"), specs.overlay_service(task, "image")
    assert host["task_template"]["Networks"] == [{"Target": "host"}]
    for service in (host, overlay):
        container = service["task_template"]["ContainerSpec"]
        assert container["User"] == "1000" and container["CapabilityDrop"] == ["ALL"]
        assert "docker.sock" not in json.dumps(service)
        assert service["mode"] == {"GlobalJob": {}}
    assert [one.target for one in task.targets] == [
        f"tcp://10.0.0.{host}" for host in ("1:7946", "2:7946", "1:2377")
    ]
    assert set(task.targets) < set(task.closed)


def test_the_reports_are_collected_where_doctor_runs_or_else_by_the_leader() -> None:
    nodes = (node(1), node(2))
    for own, leader, collector in (("id2", "id1", "id2"), ("gone", "id2", "id2"), ("", "", "id1")):
        facts = ClusterFacts(SwarmFacts("active", True, node_id=own, leader_id=leader), nodes)
        assert specs.task_for(facts, nodes, "word").collector == collector


def test_the_probe_tries_the_platforms_services_where_browsers_come_in() -> None:
    services = tuple(
        ServiceFacts(role, 1, 1, nodes=frozenset({"id2"})) for role in ("hub", "proxy", "registry")
    )
    facts = ClusterFacts(SwarmFacts("active", True), (node(1), node(2)), services)

    def tried(choices: Choices) -> dict[str, str]:
        known = replace(facts, record=ClusterRecord(choices, "id1"))
        return {
            one.what: one.target
            for one in specs.task_for(known, known.nodes, "word").targets
            if not one.group
        }

    relay = {"registry": "http://127.0.0.1:5100/v2/"}
    assert tried(Choices(port=8443)) == relay | {"hub": "https://10.0.0.1:8443/hub/health"}
    shared = Choices(shared_data="/mnt/lab", tls=TLS_NONE, port=80)
    assert tried(shared) == relay | {"hub": "http://10.0.0.2:80/hub/health"}


@pytest.mark.parametrize(
    ("body", "set_aside"), [(Health(ok=True, wire_version=1, set_aside=3).model_dump_json(), 3), ("[{]}", 0)]
)
async def test_the_probe_hears_what_the_job_service_gave_up(body: str, set_aside: int) -> None:
    class Page(RequestHandler):
        def get(self) -> None:
            self.finish(body)

    socket, port = bind_unused_port()
    server = HTTPServer(Application([("/health", Page)]))
    server.add_socket(socket)
    answer = await probe._try(Target(what="service", target=f"http://127.0.0.1:{port}/health"))
    server.stop()
    assert (answer.ok, answer.set_aside) == (True, set_aside)
