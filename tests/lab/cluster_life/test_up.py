"""`up` on fresh engines: once, again, interrupted, with other options; `upgrade` and `down`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minicluster_hub.cluster.doctor.specs import NAME as DOCTOR
from minicluster_hub.cluster.firewall.rules import CHAIN
from minicluster_hub.cluster.plan.plan import PLATFORM
from minicluster_hub.engines.swarm.names import CLUSTER, DATA_VOLUME
from minicluster_hub.launch.demo import SERVICE_PATH

from ... import messages
from ..behind import containers as running
from ..cluster import LABEL, Images, LabCluster, Person
from ..machines import Lab, LabError, Node
from ..machines.images import HUB_IMAGE, NOTEBOOK_IMAGE, build, push
from ..machines.processes import wait_for

KILLED = 128 + 9
KINDS = ("service", "network", "secret", "config", "volume")
APART = pytest.mark.apart("it makes machines of its own")


@pytest.fixture(scope="module")
def machines(images: tuple[str, ...], say: Callable[[str], None]) -> Iterator[Lab]:
    """Three engines; only the first one has the platform's own images."""
    hub, _, registry = images
    say("fresh engines")
    with Lab.fresh(images=(hub, registry), images_on=1) as lab:
        yield lab


@pytest.fixture
def fresh(machines: Lab, images: tuple[str, ...]) -> Iterator[LabCluster]:
    """The engines without a Swarm or remains of the test before."""
    yield LabCluster(machines, Images(*(push(image, machines.registry) for image in images)))
    machines.reset()


def everything(cluster: LabCluster, *nodes: Node) -> dict[str, list[str]]:
    """Return the names of all objects with the cluster's label."""
    return {
        f"{kind} on {node.name}": cluster.docker(
            kind, "ls", "--filter", f"label={LABEL}", "--format", "{{.Name}}", node=node
        )
        for node in nodes or (cluster.first,)
        for kind in (KINDS if node is cluster.first else ("volume",))
    }


def versions(cluster: LabCluster) -> dict[str, int]:
    """Return the version of each platform service, which grows with each change."""
    # Data set agents start and end by themselves at any time.
    names = [name for name in cluster.services() if name.startswith(f"{CLUSTER}_")]
    found = json.loads("".join(cluster.docker("service", "inspect", *names)))
    return {one["Spec"]["Name"]: one["Version"]["Index"] for one in found}


def filter_rules(node: Node) -> list[str]:
    """Return the rules of a machine's packet filter."""
    return node.run(["iptables-save", "-t", "filter"]).stdout.splitlines()


def containers(cluster: LabCluster) -> dict[str, str]:
    """Return the platform's containers, each with its name, without those that end by themselves."""
    wanted = (f"--filter=label={LABEL}", f"--filter=name={CLUSTER}_")
    lines = cluster.docker("ps", "--no-trunc", "--format={{.ID}} {{.Names}}", *wanted)
    return dict(line.split() for line in lines if DOCTOR not in line)


def is_settled(cluster: LabCluster) -> bool:
    """Whether no service is being updated, and none has an old container on the first machine."""
    own = [name for name in cluster.services() if name.startswith(f"{CLUSTER}_")]
    found = json.loads("".join(cluster.docker("service", "inspect", *own)))
    if any(one.get("UpdateStatus", {}).get("State", "completed") != "completed" for one in found):
        return False
    wanted = (f"--filter=name={CLUSTER}_", '--format={{.Label "com.docker.swarm.service.name"}}')
    names = cluster.docker("ps", *wanted)
    return len(names) == len(set(names))


async def logs_in(cluster: LabCluster) -> bool:
    async with cluster.person() as admin:
        found = await admin.visitor.http.get("/hub/api/user")
        return found.status_code == 200 and found.json()["name"] == "admin"


@pytest.mark.gate("`up` makes a cluster from nothing, and once more changes nothing")
async def test_up_from_nothing_and_again(cluster: LabCluster) -> None:
    assert await logs_in(cluster)
    assert cluster.said.count(cluster.password) == 1
    assert cluster.command("status").count("ready") == 3
    with pytest.raises(LabError, match=cluster.first.address):
        cluster.lab.nodes[1].run(cluster.docker_run("up"))

    wait_for(lambda: is_settled(cluster), "an earlier update to end", 120, 0.5)
    before, running = versions(cluster), containers(cluster)
    again = cluster.up()
    assert messages.NOTHING_CHANGED in again and cluster.password not in again
    assert versions(cluster) == before
    assert running.items() <= containers(cluster).items()


def test_what_the_platform_takes_of_a_machine_has_an_end(cluster: LabCluster) -> None:
    """A bug in a service, or an attack on it, can use up only its own container's limits."""
    roles = {f"{CLUSTER}_{role}" for role in PLATFORM if role != "images"} & set(cluster.services())
    form = "{{json .Spec.TaskTemplate.Resources.Limits}}"
    for name in roles:
        found = json.loads(cluster.docker("service", "inspect", name, "--format", form)[0])
        assert found["MemoryBytes"] and found["Pids"], name
    here = [one for one in running(cluster.lab) if one.node == cluster.first.name]
    assert {"hub", "service", "proxy", "registry", "relay"} <= {one.role for one in here}
    (relay,) = [one.id for one in here if one.role == "relay"]
    hog = ["docker", "exec", relay, "python", "-c", "b'x' * (1 << 30)"]
    assert cluster.first.run(hog, check=False).returncode == KILLED
    assert relay in containers(cluster)
    assert [one for one in cluster.doctor() if one["level"] == "FAILED"] == []


@pytest.mark.alone("it measures links, which others would slow down")
def test_doctor_names_the_slow_cable_and_the_interfaces_of_gloo_and_nccl(cluster: LabCluster) -> None:
    found = cluster.doctor()
    taken = {one["node"]: one for one in found if one["check"] == "interface"}
    wrong = "\n".join(f"{one['node']}: {one['what']}" for one in found if one["level"] != "ok")
    assert taken.keys() == {node.name for node in cluster.lab.nodes}, wrong
    for node in cluster.lab.nodes:
        assert taken[node.name]["level"] == "ok", taken
        assert "Gloo and NCCL take eth" in taken[node.name]["what"]
        assert f"({node.address})" in taken[node.name]["what"]
    assert ["no node has an NVIDIA GPU" in one["what"] for one in found if one["check"] == "gpu-copies"] == [
        True
    ]
    flows = " ".join(one["node"] + one["what"] for one in found if one["check"] == "link")
    assert all(node.name in flows for node in cluster.lab.nodes), found

    slow = cluster.lab.nodes[1]
    slow.limit_rate(90)
    try:
        (warned,) = (one for one in cluster.doctor() if one["check"] == "link" and one["level"] == "warning")
    finally:
        slow.unlimit()
    assert warned["node"] == slow.name and "all its links are slow" in warned["what"]
    assert "Mbit/s there and" in warned["what"] and "100 Mbit/s link" in warned["remedy"], warned


@APART
async def test_up_with_another_port_and_down(fresh: LabCluster) -> None:
    """No machine has the notebook image yet."""
    fresh.up()
    fresh.join()
    before = versions(fresh)
    fresh.command("up", "--port=8443")
    changed = {name for name, version in versions(fresh).items() if version != before[name]}
    assert "minicluster_proxy" in changed
    assert not changed & {"minicluster_service", "minicluster_registry", "minicluster_relay"}
    fresh.said = fresh.said.replace(fresh.url, f"https://{fresh.first.address}:8443")
    assert await logs_in(fresh)

    wait_for(
        lambda: re.search(r"keeper +3 of 3", fresh.command("status", check=False)),
        "three data set agents",
        300,
        1,
    )
    fresh.command("down")
    left = everything(fresh, *fresh.lab.nodes)
    first, *others = (set(left.pop(f"volume on {node.name}")) for node in fresh.lab.nodes)
    assert {"minicluster_hub", "minicluster_service", DATA_VOLUME} <= first
    assert not [name for name in first if "docker" in name]
    assert others == [{DATA_VOLUME}] * 2
    assert not [name for names in left.values() for name in names if "record" not in name]
    assert not [rule for node in fresh.lab.nodes for rule in filter_rules(node) if CHAIN in rule]

    assert "as before" in fresh.command("up")
    assert await logs_in(fresh)
    fresh.command("down", "--data", "--yes", "--leave")
    assert not any(fresh.docker("volume", "ls", "--quiet", node=node) for node in fresh.lab.nodes)
    assert fresh.docker("info", "--format", "{{.Swarm.LocalNodeState}}") == ["inactive"]


@APART
def test_options_that_cannot_be_are_refused_by_name_before_anything_is_made(fresh: LabCluster) -> None:
    for arguments, sentence in (
        (("up", "--port=0"), "a port is a number from 1 to 65535"),
        (("up", "--tls-cert=/none.pem", "--tls-key=/none.key"), "/none.pem"),
        (("down", "--data"), "manages no Swarm"),
        (("upgrade",), f"There is {messages.NO_CLUSTER_HERE}"),
        (("adduser", "ada"), f"There is {messages.NO_CLUSTER_HERE}"),
        (("status",), "manages no Swarm"),
        (("up", "--notebook-image=nobody/has:it"), "registry:3 is not on this machine and cannot be pulled"),
        (
            ("up", "--notebook-image=nobody/has:it", f"--registry-image={fresh.images.registry}"),
            "nobody/has:it",
        ),
    ):
        assert sentence in fresh.command(*arguments, check=False), arguments
    assert not any(fresh.services())


@APART
async def test_an_up_that_is_killed_again_and_again_goes_on_and_ends_well(fresh: LabCluster) -> None:
    """Each `up` is killed when it prints its next step, so that every step is interrupted once."""
    for step in ("swarm", "secrets", "registry", "relay", "service", "hub", "proxy"):
        cut_off(fresh, step)
    fresh.up()
    assert await logs_in(fresh)
    assert messages.NOTHING_CHANGED in fresh.up()


def cut_off(cluster: LabCluster, step: str) -> None:
    """Run `up` and kill its container at the first line about a step."""
    name = f"cut-{step}"
    command = cluster.first.machine.inside(*cluster.docker_run(*cluster.up_words, name=name))
    environment = {**os.environ, **cluster.first.engine.environment()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip().startswith(step):
                cluster.first.run(["docker", "kill", name], check=False)
                break


@APART
async def test_an_upgrade_keeps_data_and_the_servers_that_run(fresh: LabCluster) -> None:
    fresh.up()
    newer = [publish_newer(name, fresh.lab) for name in (HUB_IMAGE, NOTEBOOK_IMAGE)]
    async with fresh.person() as admin:
        await admin.start_server()
        assert "ran" in await a_cell(admin)
        fresh.images = dataclasses.replace(fresh.images, hub=newer[0])
        fresh.command("upgrade", f"--notebook-image={newer[1]}")
    async with fresh.person() as admin:
        await admin.visitor.wait_server()
        await admin.visitor.http.get(SERVICE_PATH)
        assert "ran" in await a_cell(admin), "a server of before the upgrade can still send jobs"
        assert len((await admin.ask("api/jobs"))["jobs"]) == 2


def publish_newer(name: str, lab: Lab) -> str:
    """Make another image with the same content as a next release; return its name in the outside registry."""
    newer = f"{name}-next"
    with tempfile.TemporaryDirectory() as folder:
        dockerfile = Path(folder, "Dockerfile")
        dockerfile.write_text(f"FROM {name}\nLABEL release=next\n")
        build(dockerfile, newer, Path(folder), {})
    return push(newer, lab.registry)


async def a_cell(person: Person) -> str:
    """Run a cell as a job of one rank; return the rank's output."""
    async with person.kernel() as kernel:
        await kernel.run("%%distribute --nodes 1 --name upgrade\nprint('r' + 'an')")
        job = (await person.ask("api/jobs"))["jobs"][0]
    log = await person.visitor.http.get(f"{SERVICE_PATH}api/jobs/{job['id']}/log")
    return log.text
