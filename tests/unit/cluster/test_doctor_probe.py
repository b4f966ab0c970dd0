"""What the doctor sends to each node: a probe without rights."""

from __future__ import annotations

import json

import pytest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from minicluster_hub.api.ops import Health
from minicluster_hub.cluster.doctor import probe, specs
from minicluster_hub.cluster.doctor.report import Door

from ..engines.swarm_nodes import node


def test_the_probe_has_no_socket_no_rights_and_a_bound() -> None:
    task = specs.task_for([node(1), node(2)], "word", [])
    host, overlay = specs.host_service(task, "image"), specs.overlay_service(task, "image")
    assert host["task_template"]["Networks"] == [{"Target": "host"}]
    for service in (host, overlay):
        container = service["task_template"]["ContainerSpec"]
        assert container["User"] == "1000" and container["CapabilityDrop"] == ["ALL"]
        assert "docker.sock" not in json.dumps(service)
        assert service["mode"] == {"GlobalJob": {}}
    assert specs.swarm_doors([node(1), node(2)])[-1].target == "tcp://10.0.0.1:2377"


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
    answer = await probe._try_door(Door(what="service", target=f"http://127.0.0.1:{port}/health"))
    server.stop()
    assert (answer.ok, answer.set_aside) == (True, set_aside)
