"""Docker calls from inside the hub and the job service, as an attacker there would make them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from docker.errors import NotFound

from minicluster_hub.engines.swarm.names import labels

from ..behind import containers
from ..cluster import LabCluster
from ..machines.processes import wait_for
from ..people import People, text
from ..remains import check_nothing_left

CALL = """import base64, json, sys
from minicluster_hub.engines.swarm.docker import Docker, translated
client = Docker.connect().client()
for method, words, named in json.loads(base64.b64decode(sys.argv[1])):
    try:
        print(json.dumps(["ok", str(getattr(client, method)(*words, **named))]))
    except Exception as error:
        print(json.dumps([type(translated(error)).__name__, str(error)]))
"""
Call = tuple[str, list[Any], dict[str, Any]]


def call(cluster: LabCluster, role: str, *calls: Call) -> list[tuple[str, str]]:
    """Call Docker from a role's container, as its own program does; return the outcome of each call."""
    (container,) = [one for one in containers(cluster.lab) if one.role == role]
    encoded = base64.b64encode(json.dumps(calls).encode()).decode()
    lines = cluster.docker("exec", container.id, "python", "-P", "-c", CALL, encoded)
    return [(kind, answer) for kind, answer in map(json.loads, lines)]


def task(cluster: LabCluster, secret_id: str = "", **changes: Any) -> dict[str, Any]:
    """Return the request for a task's service, which is allowed without the changes."""
    marks = labels("task", name="minicluster-task-999999", task=999999, gang=999999)
    file = {"Name": "x", "UID": "1000", "GID": "1000", "Mode": 0o400}
    secret = {"SecretID": secret_id, "SecretName": "minicluster-task-999999", "File": file}
    container = {
        "Image": cluster.images.notebook,
        "Command": ["sleep", "600"],
        "User": "1000",
        "Labels": marks,
        "CapabilityDrop": ["ALL"],
        "Privileges": {"NoNewPrivileges": True},
        "Secrets": [secret] if secret_id else [],
    }
    return {
        "name": "minicluster-task-999999",
        "labels": marks,
        "mode": {"Replicated": {"Replicas": 1}},
        "endpoint_spec": {"Mode": "dnsrr"},
        "task_template": {
            "ContainerSpec": container | changes,
            "RestartPolicy": {"Condition": "none"},
            "Placement": {"Constraints": ["node.role==manager"]},
            "Networks": [{"Target": "minicluster-gang-999999"}],
            "LogDriver": {"Name": "json-file"},
        },
    }


def test_only_the_docker_proxy_and_what_guards_the_disks_have_the_socket(cluster: LabCluster) -> None:
    for node in cluster.lab.nodes:
        with node.docker() as client:
            for one in client.containers():
                try:
                    found = client.inspect_container(one["Id"])
                except NotFound:
                    continue  # It ended meanwhile.
                role = found["Config"]["Labels"].get("org.minicluster.role", "")
                sources = [mount["Source"] for mount in found["Mounts"]]
                holds = any("docker.sock" in path for path in sources)
                assert not holds or role in ("docker-proxy", "eviction"), role


def test_the_docker_proxy_reaches_nothing_and_writes_nothing(cluster: LabCluster) -> None:
    (proxy,) = [one for one in containers(cluster.lab) if one.role == "docker-proxy"]
    status = cluster.docker("exec", proxy.id, "cat", "/proc/1/status")
    status_fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    assert status_fields["Uid"].split() == ["1000"] * 4 and status_fields["CapBnd"] == "0" * 16
    routes = [line.split() for line in cluster.docker("exec", proxy.id, "cat", "/proc/net/route")[1:]]
    assert not [route for route in routes if route[1] == "00000000"], "a way out"
    assert cluster.docker("exec", proxy.id, "sh", "-c", "touch /srv/x 2>/dev/null || echo refused") == [
        "refused"
    ]


@pytest.mark.parametrize("role", ["hub", "service"])
def test_each_has_its_own_socket_only(role: str, cluster: LabCluster) -> None:
    (container,) = [one for one in containers(cluster.lab) if one.role == role]
    found = cluster.docker(
        "exec", container.id, "sh", "-c", "find / -name docker.sock -type s 2>/dev/null; true"
    )
    assert found == [f"/srv/docker-proxy/{role}/docker.sock"]


@pytest.mark.parametrize("role", ["hub", "service"])
def test_docker_does_nothing_that_leads_to_root(role: str, cluster: LabCluster) -> None:
    calls: list[Call] = [
        ("containers", [], {}),
        ("create_container", [cluster.images.hub, "id"], {}),
        ("exec_create", ["abc", "id"], {}),
        ("create_volume", [], {"name": "x", "driver_opts": {"type": "none", "o": "bind", "device": "/"}}),
        ("inspect_swarm", [], {}),
        ("leave_swarm", [], {"force": True}),
        ("configs", [], {}),
        ("remove_service", ["minicluster_registry"], {}),
        ("remove_secret", ["a" * 25], {}),
        ("remove_network", ["a" * 25], {}),
        ("create_service", [], task(cluster, Mounts=[{"Type": "bind", "Source": "/", "Target": "/host"}])),
        ("create_service", [], task(cluster, User="0")),
    ]
    for (method, *_), (kind, answer) in zip(calls, call(cluster, role, *calls), strict=True):
        assert kind == "DockerRefused" and "403" in answer, (method, answer)


def test_a_secret_of_the_platform_is_not_had_by_another_name(cluster: LabCluster) -> None:
    """The proxy checks names, and Docker checks that name and id belong together."""
    listed = cluster.docker("secret", "ls", "--format", "{{.ID}} {{.Name}}")
    ids = {name: id for id, name in (line.split() for line in listed)}
    key = next(id for name, id in ids.items() if name.startswith("minicluster_registry_publisher"))
    network = "minicluster-gang-999999"
    cluster.docker("network", "create", "--driver", "overlay", network)
    ((kind, answer),) = call(cluster, "service", ("create_service", [], task(cluster, secret_id=key)))
    cluster.docker("network", "rm", network)
    assert (kind, "secret not found" in answer) == ("DockerRefused", True), answer
    assert "minicluster-task-999999" not in cluster.services("task")


async def test_a_docker_proxy_that_dies_is_back_and_nobody_noticed(
    cluster: LabCluster, people: People
) -> None:
    async with people.at_work("linus") as linus, linus.kernel() as kernel:
        assert "rank 0" in text(
            await kernel.run("%%distribute --nodes 3\nprint('rank', __import__('os').environ['RANK'])")
        )
        (proxy,) = [one for one in containers(cluster.lab) if one.role == "docker-proxy"]
        cluster.docker("kill", proxy.id)
        assert "rank 0" in text(
            await kernel.run("%%distribute --nodes 2\nprint('rank', __import__('os').environ['RANK'])")
        )
        # Until the service is back, `status` exits with 1.
        wait_for(
            lambda: "docker-proxy 1 of 1" in cluster.command("status", check=False),
            "a new Docker proxy",
            60,
            1,
        )
    check_nothing_left(cluster)
