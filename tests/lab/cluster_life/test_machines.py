"""The lab itself: its features that other tests rely on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker.errors import DockerException

from ..machines import Lab, LabBusy, LabError, Node
from ..machines.builder import BASE_IMAGE
from ..machines.processes import run, wait_for

pytestmark = pytest.mark.apart("it makes machines of its own")
DOWN_WITHIN_S = 60
READY_WITHIN_S = 90
MEGABYTE = 1_000_000
PORT = 9000
TAKE = "peer, _ = server.accept()\nwhile peer.recv(65536): pass"
ASK_ENGINE = """
import http.client, json, socket
engine = http.client.HTTPConnection("engine")
engine.sock = socket.socket(socket.AF_UNIX)
engine.sock.connect("/socket")
engine.request("GET", "/info")
print(json.load(engine.getresponse())["Name"])
socket.create_connection(("{manager}", 2377), timeout=10).close()
"""


@pytest.fixture(scope="module")
def swarm(builder: None) -> Iterator[Lab]:
    with Lab.fresh(gpus=[1, 2, 0], disk_mb=800) as made:
        made.form_swarm()
        made.load(BASE_IMAGE)
        yield made


def states(lab: Lab) -> dict[str, str]:
    with lab.nodes[0].docker() as client:
        return {node["Description"]["Hostname"]: node["Status"]["State"] for node in client.nodes()}


def wait_state(lab: Lab, node: Node, state: str, within_s: float) -> None:
    wait_for(lambda: states(lab)[node.name] == state, f"{node.name} to be {state}", within_s, 0.2)


def transfer(source: Node, target: Node, size_bytes: int) -> float:
    """Send bytes from one node to another; return the seconds."""
    take = f"import socket\nserver = socket.create_server(('', {PORT}))\nprint(flush=True)\n{TAKE}"
    give = (
        f"import socket; socket.create_connection(({target.address!r}, {PORT})).sendall(bytes({size_bytes}))"
    )
    with subprocess.Popen(target.machine.inside("python3", "-c", take), stdout=subprocess.PIPE) as taker:
        assert taker.stdout and taker.stdout.readline()
        start = time.monotonic()
        source.run(["python3", "-c", give])
        taker.wait(60)
        return time.monotonic() - start


def test_three_hosts_form_a_swarm_with_their_gpus(swarm: Lab) -> None:
    with swarm.nodes[0].docker() as client:
        found = client.nodes()
    gpus = {
        node["Description"]["Hostname"]: [
            entry["NamedResourceSpec"]["Value"]
            for entry in node["Description"]["Resources"].get("GenericResources", [])
        ]
        for node in found
    }
    assert states(swarm) == dict.fromkeys(("node1", "node2", "node3"), "ready")
    assert gpus == {"node1": ["GPU-fake10"], "node2": ["GPU-fake20", "GPU-fake21"], "node3": []}


def test_a_container_reaches_other_nodes_and_its_own_engine(swarm: Lab) -> None:
    manager, node, _ = swarm.nodes
    ask = ASK_ENGINE.format(manager=manager.address)
    socket = "--volume=/var/run/docker.sock:/socket"
    result = node.run(["docker", "run", "--rm", socket, BASE_IMAGE, "python3", "-c", ask])
    assert result.stdout.strip() == "node2"


def test_a_cut_node_is_seen_down_and_comes_back(swarm: Lab) -> None:
    node = swarm.nodes[1]
    node.cut()
    wait_state(swarm, node, "down", DOWN_WITHIN_S)
    node.plug()
    wait_state(swarm, node, "ready", READY_WITHIN_S)


def test_a_killed_node_comes_back_with_what_was_on_its_disk(swarm: Lab) -> None:
    node = swarm.nodes[2]
    node.run(["docker", "run", "--detach", "--name=left", BASE_IMAGE, "sleep", "600"])
    node.kill()
    wait_state(swarm, node, "down", DOWN_WITHIN_S)
    with pytest.raises(LabError, match="node3 is switched off"):
        node.run("true")
    node.power_on()
    wait_state(swarm, node, "ready", READY_WITHIN_S)
    text = node.run("docker inspect --format {{.State.Status}} left").stdout
    assert text.strip() == "exited"


def test_a_frozen_node_answers_when_it_is_thawed(swarm: Lab) -> None:
    node = swarm.nodes[1]
    node.freeze()
    try:
        with pytest.raises(DockerException, match="timed out"):
            node.docker(timeout_s=1)
    finally:
        node.thaw()
    with node.docker() as client:
        assert client.ping()


def test_bytes_are_counted_and_a_slow_cable_is_slow(swarm: Lab) -> None:
    source, target, _ = swarm.nodes
    sent, received = source.bytes_sent(), target.bytes_received()
    target.limit_rate(20)
    slow_s = transfer(source, target, 5 * MEGABYTE)
    target.unlimit()
    assert slow_s > 1.7, "5 MB at 20 Mbit/s take 2 s, but for what the first burst has"
    took_s = [slow_s]

    def is_fast() -> bool:
        took_s.append(transfer(source, target, 5 * MEGABYTE))
        return took_s[-1] < slow_s / 2

    wait_for(is_fast, "a fast cable", 60)
    least = 5 * MEGABYTE * len(took_s)
    assert least < source.bytes_sent() - sent < 1.1 * least
    assert least < target.bytes_received() - received < 1.1 * least


def test_a_full_disk_refuses_containers_until_it_is_freed(swarm: Lab) -> None:
    node = swarm.nodes[1]
    arguments = ["docker", "run", "--rm", BASE_IMAGE, "true"]
    node.fill_disk()
    assert "no space left on device" in node.run(arguments, check=False).stderr
    node.free_disk()
    assert node.run(arguments, check=False).returncode == 0


def test_the_daemon_restarts(swarm: Lab) -> None:
    node = swarm.nodes[0]
    node.restart_daemon()
    wait_state(swarm, node, "ready", READY_WITHIN_S)


def test_a_name_in_use_is_refused_and_left_alone(swarm: Lab) -> None:
    with pytest.raises(LabBusy, match=f"process {os.getpid()} has a lab {swarm.plan.name}"):
        Lab(swarm.plan.name, "10.91.0").start()
    assert swarm.stands


def test_a_reset_leaves_nothing_on_the_engines_but_images(builder: None) -> None:
    with Lab.fresh(gpus=(0, 0)) as lab:
        lab.load(BASE_IMAGE)
        lab.form_swarm()
        first = lab.nodes[0]
        first.run(["docker", "network", "create", "--driver=overlay", "--attachable", "kept"])
        arguments = [
            "--replicas=2",
            "--network=kept",
            "--mount=source=kept,target=/kept",
            BASE_IMAGE,
            "sleep",
            "600",
        ]
        first.run(["docker", "service", "create", "--quiet", *arguments])
        lab.reset()
        for node in lab.nodes:
            result = node.run(
                ["docker", "info", "--format", "{{.Swarm.LocalNodeState}} {{.Containers}} {{.Images}}"]
            )
            assert result.stdout.split() == ["inactive", "0", "1"]
            assert not node.run(["docker", "volume", "ls", "--quiet"]).stdout
            networks = node.run(["docker", "network", "ls", "--format", "{{.Name}}"]).stdout.split()
            assert set(networks) <= {"bridge", "host", "none", "docker_gwbridge"}
        lab.form_swarm()


def remains(lab: Lab) -> list[str]:
    """Return a lab's folders, devices, control groups, loop devices and processes."""
    name = lab.plan.name
    places = [lab.folder, lab.data, Path("/sys/class/net", f"minilab-{name}")]
    found = [str(place) for place in places if place.exists()]
    groups = f"minilab/{name}", f"*/minilab/{name}"
    found += [str(path) for pattern in groups for path in Path("/sys/fs/cgroup").glob(pattern)]
    found += [line for line in run("losetup", "-a").splitlines() if str(lab.data) in line]
    return found + [line for line in run("ps", "-eo", "pid,args").splitlines() if f"{lab.folder}/" in line]


def test_nothing_is_left_of_a_removed_lab(builder: None) -> None:
    with Lab.fresh(disk_mb=400) as lab:
        lab.load(BASE_IMAGE, lab.nodes[:1])
        lab.nodes[0].run(["docker", "run", "--detach", "--network=host", BASE_IMAGE, "sleep", "600"])
        lab.nodes[0].freeze()
        lab.nodes[1].kill()
        assert len(remains(lab)) > 5
    wait_for(lambda: not remains(lab), f"the last of {remains(lab)}", 60)


def test_a_dead_owners_lab_is_swept_by_the_next_of_its_name(builder: None, tree: Path, say: Callable) -> None:
    make = "import os; from tests.lab.machines import Lab; Lab('orphan', '10.91.1').start(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", make], cwd=tree, check=False).returncode == 9
    orphan = Lab.attach("orphan")
    former = orphan.nodes[0].machine.first()
    with Lab("orphan", "10.91.1") as lab:
        assert lab.nodes[0].machine.first() != former
    wait_for(lambda: not remains(lab), f"the last of {remains(lab)}", 60)
