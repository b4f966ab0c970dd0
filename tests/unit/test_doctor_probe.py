"""What the doctor sends to each node: a probe without rights."""

from __future__ import annotations

import json

from minicluster_hub.cluster.doctor import specs

from .swarm_nodes import node


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
