"""An attacker in the hub or the job service calls Docker: calls that lead to root are refused."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.swarm.data_agents import data_agent_spec
from minicluster_hub.engines.swarm.docker import DockerRefused, DockerUnavailable
from minicluster_hub.engines.swarm.gpus.holds import holder_spec
from minicluster_hub.engines.swarm.gpus.share import SharedGpu
from minicluster_hub.engines.swarm.gpus.sharing import shared_gpu_spec
from minicluster_hub.engines.swarm.lighthouses import lighthouse_spec
from minicluster_hub.engines.swarm.names import DATA_ROLE, labels
from minicluster_hub.engines.swarm.spec import TaskSettings, network_spec, secret_spec, service_spec
from minicluster_hub.engines.swarm.view import SwarmNode
from minicluster_hub.jobs.records import ServerRecord
from minicluster_spawner import server_spec
from minicluster_spawner.container import SECRET_FILE
from minicluster_spawner.options import Choice

from ...conftest import Needs
from ...patience import eventually
from .docker_proxy import Engine, Proxy

IMAGE = "127.0.0.1:5101/notebook@sha256:" + "a" * 64
NODE = SwarmNode("n1", "pc-1", "10.0.0.1", True, True, "active", ("GPU-1",), {}, "26.1.5", 2**34, 4.0)
SETTINGS = TaskSettings(image=IMAGE, service_ca="PEM", watch_gpus=True)
TASK = TaskLaunch(12, 4, "ada", "pc-1", (0,), "the-token", ("http://10.0.0.1:8082/",), job_id=7, attempt_id=9)
SERVER = server_spec.ServerLaunch(
    service="minicluster-server-ada--second",
    owner="ada",
    server="second",
    spawn_id="0123456789ab",
    choice=Choice(image_name="CPU", image=IMAGE, cpus=2.0, memory_bytes=2**32),
    node=NODE,
)
HOMES = {"type": "nfs", "o": "addr=nas,rw", "device": ":/homes/%s"}
TOLD = {"image": IMAGE, "homes": HOMES, "mounts": ["/srv/data:ro", "/srv/scratch/{username}", "datasets"]}


def task() -> dict[str, Any]:
    return service_spec(TASK, NODE, ("gpu",), "secretid", SETTINGS)


def holder() -> dict[str, Any]:
    return holder_spec(ServerRecord(1, "ada", "", "pc-1", (0,), None, 0.0), NODE, SETTINGS)


def shared_gpu() -> dict[str, Any]:
    return shared_gpu_spec(("n1", 0), NODE, SETTINGS)


def light_task() -> dict[str, Any]:
    return service_spec(TASK, NODE, ("gpu",), "secretid", SETTINGS, SharedGpu("GPU-1", 0))


def data_agent() -> dict[str, Any]:
    spec = data_agent_spec(NODE, ("https://10.0.0.1:8083/",), "token", SETTINGS)
    spec["task_template"]["ContainerSpec"]["Secrets"][0]["SecretID"] = "secretid"
    return spec


def server(**settings: Any) -> dict[str, Any]:
    secrets = server_spec.secret_specs(SERVER, {"A": "b"}, {"internal-ssl.key": b"x"})
    ids = {str(one["name"]): "secretid" for one in secrets}
    return server_spec.service_spec(SERVER, ids, server_spec.ServerSettings(**settings))


def light_server() -> dict[str, Any]:
    launch = dataclasses.replace(SERVER, shared=SharedGpu("GPU-1", 0))
    secrets = server_spec.secret_specs(launch, {"A": "b"}, {"internal-ssl.key": b"x"})
    ids = {str(one["name"]): "secretid" for one in secrets}
    return server_spec.service_spec(launch, ids, server_spec.ServerSettings())


@pytest.fixture(scope="module")
def process(needs: Needs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy for all tests of the module; each has its own engine."""
    needs(shutil.which("haproxy"), "no haproxy (Debian: apt-get install haproxy)")
    folder = tmp_path_factory.mktemp("docker")
    made = Proxy(folder, Engine(folder / "engine.sock"), TOLD)
    made.start()
    yield made
    made.stop()


@pytest.fixture
async def proxy(process: Proxy) -> AsyncIterator[Proxy]:
    process.engine = Engine(process.engine.socket)
    process.engine.start()
    yield process
    await process.engine.stop()


@pytest.fixture
def engine(proxy: Proxy) -> Engine:
    return proxy.engine


CALLS: dict[str, list[tuple[str, tuple[Any, ...], dict[str, Any]]]] = {
    "service": [
        ("tasks", (), {"filters": {"label": ["a=b"]}}),
        ("nodes", (), {}),
        ("services", (), {"filters": {"label": ["a=b"]}}),
        ("secrets", (), {"filters": {"label": ["a=b"]}}),
        ("networks", (), {"filters": {"label": ["a=b"]}}),
        ("inspect_distribution", ("registry.lab.org:5000/a/b.c@sha256:" + "1" * 64,), {}),
        ("create_secret", (), secret_spec(TASK)),
        ("create_network", (), network_spec(4)),
        ("create_service", (), task()),
        ("create_service", (), lighthouse_spec(4, NODE, SETTINGS)),
        ("create_service", (), holder()),
        ("create_service", (), shared_gpu()),
        ("create_service", (), light_task()),
        ("create_service", (), data_agent()),
        ("create_secret", ("minicluster-keeper-n1", b"token"), {"labels": labels(DATA_ROLE)}),
        ("remove_service", ("minicluster-task-12",), {}),
        ("remove_service", ("minicluster-lighthouse-4",), {}),
        ("remove_service", ("minicluster-gpus-ada",), {}),
        ("remove_service", ("minicluster-shared-gpu-n1-0",), {}),
        ("remove_service", ("minicluster-keeper-n1",), {}),
        ("remove_secret", ("minicluster-keeper-n1",), {}),
        ("remove_secret", ("minicluster-task-12",), {}),
        ("remove_network", (network_spec(4)["name"],), {}),
    ],
    "hub": [
        ("tasks", (), {"filters": {"label": ["a=b"]}}),
        ("nodes", (), {}),
        ("services", (), {"filters": {"label": ["a=b"]}}),
        ("secrets", (), {"filters": {"label": ["a=b"]}}),
        ("inspect_service", ("minicluster-server-ada",), {}),
        *(
            ("create_secret", (), one)
            for one in server_spec.secret_specs(SERVER, {"A": "b"}, {"a.key": b"x"})
        ),
        ("create_service", (), server()),
        ("create_service", (), light_server()),
        ("create_service", (), server(shared_homes=server_spec.NfsHomes(HOMES["o"], HOMES["device"]))),
        (
            "create_service",
            (),
            server(
                mounts=[
                    server_spec.further_mount("/srv/data", "/data", read_only=True),
                    server_spec.further_mount("/srv/scratch/ada", "/scratch", read_only=False),
                    server_spec.further_mount("datasets", "/sets", read_only=False),
                ]
            ),
        ),
        ("remove_service", ("minicluster-server-ada--second",), {}),
        *(
            ("remove_secret", (server_spec.secret_name(SERVER.spawn_id, file),), {})
            for file in (SECRET_FILE, "internal-ssl.key", "internal-ssl.crt", "internal-ssl.ca")
        ),
    ],
}


@pytest.mark.parametrize("consumer", CALLS)
async def test_what_hub_and_job_service_need_passes(consumer: str, proxy: Proxy, engine: Engine) -> None:
    client = proxy.client(consumer)
    for method, arguments, named in CALLS[consumer]:
        await client.call(method, *arguments, **named)
    assert await client.logs(
        f"minicluster-{'server-ada' if consumer == 'hub' else 'task-12'}", 10, logging.getLogger(__name__)
    )
    client.close()
    calls = [one for one in engine.seen if not one[1].endswith("/version")]
    assert len(calls) == len(CALLS[consumer]) + 1


async def test_what_reaches_docker_is_what_was_asked_for(proxy: Proxy, engine: Engine) -> None:
    client = proxy.client("service")
    await client.call("create_service", **task())
    client.close()
    _, _, document = engine.seen[-1]
    asked = task()
    assert document == {
        "Name": asked["name"],
        "Labels": asked["labels"],
        "Mode": asked["mode"],
        "EndpointSpec": asked["endpoint_spec"],
        "TaskTemplate": asked["task_template"],
    }


PATHS = [
    ("GET", "/containers/json"),
    ("POST", "/containers/create"),
    ("POST", "/containers/abc/exec"),
    ("POST", "/exec/abc/start"),
    ("GET", "/containers/abc/archive?path=/"),
    ("POST", "/build"),
    ("POST", "/images/create?fromImage=x"),
    ("DELETE", "/images/x"),
    ("POST", "/volumes/create"),
    ("GET", "/volumes"),
    ("POST", "/swarm/init"),
    ("GET", "/swarm"),
    ("GET", "/swarm/unlockkey"),
    ("POST", "/swarm/leave?force=1"),
    ("POST", "/swarm/update?version=1"),
    ("POST", "/plugins/pull?remote=x"),
    ("GET", "/plugins"),
    ("POST", "/nodes/abc/update?version=1"),
    ("DELETE", "/nodes/abc"),
    ("GET", "/info"),
    ("GET", "/configs"),
    ("GET", "/secrets/abc"),
    ("POST", "/secrets/abc/update?version=1"),
    ("POST", "/services/minicluster-task-1/update?version=1"),
    ("POST", "/services/minicluster-server-ada/update?version=1"),
    ("DELETE", "/services/minicluster_hub"),
    ("DELETE", "/services/kx1v0d0y6wq2m3n4b5c6d7e8f"),
    ("GET", "/services/minicluster_hub/logs?stdout=1"),
    ("DELETE", "/networks/minicluster"),
    ("DELETE", "/networks/ingress"),
    ("DELETE", "/networks/minicluster_docker-proxy"),
    ("DELETE", "/networks/minicluster-gang-4x"),
    ("DELETE", "/networks/kx1v0d0y6wq2m3n4b5c6d7e8f"),
    ("DELETE", "/secrets/mine"),
    ("DELETE", "/secrets/minicluster_tls_key_1a2b3c4d"),
    ("DELETE", "/secrets/kx1v0d0y6wq2m3n4b5c6d7e8f"),
    ("POST", "/networks/abc/connect"),
    ("POST", "/session"),
    ("POST", "/grpc"),
    ("POST", "/auth"),
    ("GET", "/distribution/../containers/json"),
    ("GET", "/distribution/a/../../containers/json"),
    ("GET", "/distribution/a%2f..%2f..%2fcontainers/json"),
    ("GET", "/tasks/../containers/json"),
    ("GET", "//containers/json"),
    ("GET", "/tasks/"),
    ("GET", "/tasks%2f..%2fcontainers%2fjson"),
    ("HEAD", "/containers/abc/archive"),
    ("PUT", "/tasks"),
    ("CONNECT", "/tasks"),
]


@pytest.mark.parametrize("consumer", CALLS)
async def test_every_other_call_is_refused(consumer: str, proxy: Proxy, engine: Engine) -> None:
    for version in ("", "/v1.45", "/v1.24"):
        for method, path in PATHS:
            line = f"{method} {version}{path} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n"
            answer = await proxy.raw(consumer, line.encode())
            assert b" 403 " in answer.splitlines()[0] or b" 400 " in answer.splitlines()[0], (line, answer)
            if b" 403 " in answer and method != "HEAD":
                text = json.loads(answer.partition(b"\r\n\r\n")[2])["message"]
                assert f"the {consumer} needs" in text and path.partition("?")[0] in text
    assert not engine.seen


@pytest.mark.parametrize(
    ("consumer", "method", "path"),
    [
        ("hub", "DELETE", "/services/minicluster-task-12"),
        ("hub", "GET", "/services/minicluster-task-12/logs?stdout=1"),
        ("hub", "DELETE", "/secrets/minicluster-task-12"),
        ("hub", "DELETE", "/secrets/minicluster-keeper-n1"),
        ("hub", "DELETE", "/networks/minicluster-gang-4"),
        ("hub", "GET", "/networks"),
        ("hub", "POST", "/networks/create"),
        ("hub", "GET", "/distribution/evil.example/x/json"),
        ("service", "DELETE", "/services/minicluster-server-ada"),
        ("service", "GET", "/services/minicluster-server-ada/logs?stdout=1"),
        ("service", "DELETE", "/secrets/minicluster-server-0123456789ab-server.json"),
    ],
)
async def test_neither_has_what_only_the_other_needs(
    consumer: str, method: str, path: str, proxy: Proxy, engine: Engine
) -> None:
    assert (await proxy.call(consumer, method, f"/v1.45{path}")).status_code == 403
    assert not engine.seen


async def test_nothing_is_smuggled_behind_a_call_that_may_pass(proxy: Proxy, engine: Engine) -> None:
    inner = b"POST /v1.45/containers/create HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    for head in (
        b"GET /v1.45/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(inner),
        b"GET /v1.45/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /v1.45/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
        b"GET /v1.45/tasks HTTP/1.1\r\nHost: x\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n",
    ):
        await proxy.raw("service", head + inner)
    assert not [path for _, path, _ in engine.seen if path != "/v1.45/tasks"]


def at(document: dict[str, Any], path: str) -> tuple[Any, str | int]:
    """Return the object that holds the last key of a dotted path, and that key."""
    *parents, last = [int(word) if word.isdigit() else word for word in path.split(".")]
    for word in parents:
        document = document[word]
    return document, last


C = "TaskTemplate.ContainerSpec"
MOUNTS = f"{C}.Mounts"
BIND = {"Type": "bind", "Source": "/", "Target": "/host"}
LOCAL = {"Name": "local", "Options": {"type": "none", "o": "bind", "device": "/"}}
ATTACKS: dict[str, tuple[str, Any]] = {
    "the disk": (MOUNTS, [BIND]),
    "the disk, only read": (MOUNTS, [{**BIND, "ReadOnly": True}]),
    "the socket": (MOUNTS, [{**BIND, "Source": "/var/run/docker.sock"}]),
    "the disk as a volume": (
        MOUNTS,
        [
            {
                "Type": "volume",
                "Source": "minicluster_keeper",
                "Target": "/h",
                "VolumeOptions": {"DriverConfig": LOCAL},
            }
        ],
    ),
    "the disk as a shared GPU's volume": (
        MOUNTS,
        [
            {
                "Type": "volume",
                "Source": "minicluster-mps-0",
                "Target": "/run/minicluster-mps",
                "VolumeOptions": {"DriverConfig": LOCAL},
            }
        ],
    ),
    "the disk as a home": (
        MOUNTS,
        [
            {
                "Type": "volume",
                "Source": "minicluster-home-x",
                "Target": "/h",
                "VolumeOptions": {"DriverConfig": LOCAL},
            }
        ],
    ),
    "the disk as a shared home": (
        MOUNTS,
        [
            {
                "Type": "volume",
                "Source": "minicluster-sharedhome-x",
                "Target": "/h",
                "VolumeOptions": {
                    "DriverConfig": {"Name": "local", "Options": {**HOMES, "o": "bind", "device": "/"}}
                },
            }
        ],
    ),
    "another's shared home": (
        MOUNTS,
        [
            {
                "Type": "volume",
                "Source": "minicluster-sharedhome-x",
                "Target": "/h",
                "VolumeOptions": {"DriverConfig": {"Name": "local", "Options": {**HOMES, "device": ":/etc"}}},
            }
        ],
    ),
    "the accounts": (MOUNTS, [{"Type": "volume", "Source": "minicluster_hub", "Target": "/h"}]),
    "the other's door": (MOUNTS, [{"Type": "volume", "Source": "minicluster_docker-hub", "Target": "/h"}]),
    "what of a told folder is above it": (MOUNTS, [{**BIND, "Source": "/srv/scratch/.."}]),
    "what of a told folder is below it": (MOUNTS, [{**BIND, "Source": "/srv/scratch/ada/link"}]),
    "a told folder, to write": (MOUNTS, [{**BIND, "Source": "/srv/data"}]),
    "the cache of data sets in a home": (
        MOUNTS,
        [{"Type": "volume", "Source": "minicluster_keeper", "Target": "/home/mini", "ReadOnly": True}],
    ),
    "a named pipe": (MOUNTS, [{**BIND, "Type": "npipe"}]),
    "a cluster volume": (MOUNTS, [{"Type": "cluster", "Source": "x", "Target": "/h"}]),
    "root": (f"{C}.User", "0"),
    "root by name": (f"{C}.User", "root"),
    "the socket's group": (f"{C}.User", "1000:990"),
    "the socket's group beside": (f"{C}.Groups", ["990"]),
    "capabilities": (f"{C}.CapabilityAdd", ["SYS_ADMIN"]),
    "kept capabilities": (f"{C}.CapabilityDrop", []),
    "new privileges": (f"{C}.Privileges", {"NoNewPrivileges": False}),
    "no seccomp": (f"{C}.Privileges", {"NoNewPrivileges": True, "Seccomp": {"Mode": "unconfined"}}),
    "sysctls": (f"{C}.Sysctls", {"net.ipv4.ip_forward": "1"}),
    "the node's network": ("TaskTemplate.Networks", [{"Target": "host"}]),
    "the platform's network as well": (
        "TaskTemplate.Networks",
        [{"Target": "minicluster-gang-4"}, {"Target": "minicluster"}],
    ),
    "the hub's name": ("TaskTemplate.Networks.0.Aliases", ["hub"]),
    "networks by the old field": ("Networks", [{"Target": "host"}]),
    "a platform's secret": (f"{C}.Secrets.0.SecretName", "minicluster_tls_key_1a2b3c4d"),
    "a platform's config": (f"{C}.Configs", [{"ConfigID": "x", "ConfigName": "minicluster_hub_config_1"}]),
    "a program loaded first": (f"{C}.Env", ["LD_PRELOAD=/cluster-data/evil.so"]),
    "a published port": (
        "EndpointSpec",
        {"Mode": "dnsrr", "Ports": [{"TargetPort": 22, "PublishedPort": 22}]},
    ),
    "one on each node": ("Mode", {"Global": {}}),
    "a plugin": ("TaskTemplate.PluginSpec", {"Remote": "evil", "PluginPrivilege": []}),
    "another runtime": ("TaskTemplate.Runtime", "plugin"),
    "a log driver": (
        "TaskTemplate.LogDriver",
        {"Name": "syslog", "Options": {"syslog-address": "tcp://evil:1"}},
    ),
    "a platform's name": ("Name", "minicluster_hub"),
    "a platform's role": (
        "Labels",
        {"org.minicluster.cluster": "minicluster", "org.minicluster.role": "relay"},
    ),
    "the same in small letters": ("taskTemplate", {"ContainerSpec": {"Image": "evil", "Mounts": [BIND]}}),
    "a mount in small letters": (f"{C}.mounts", [BIND]),
}


def documents() -> dict[str, dict[str, Any]]:
    """Return the legitimate request bodies of each consumer."""
    found = {}
    for consumer, spec in (("service", task()), ("hub", server())):
        found[consumer] = {
            "Name": spec["name"],
            "Labels": spec["labels"],
            "TaskTemplate": spec["task_template"],
            "Mode": spec["mode"],
            "Networks": None,
            "EndpointSpec": spec["endpoint_spec"],
        }
    return copy.deepcopy(found)


@pytest.mark.parametrize("consumer", CALLS)
async def test_no_service_that_leads_to_root_is_made(consumer: str, proxy: Proxy, engine: Engine) -> None:
    for attack, (path, value) in ATTACKS.items():
        document = documents()[consumer]
        part, last = at(document, path)
        part[last] = value
        answer = await proxy.call(consumer, "POST", "/v1.45/services/create", json=document)
        assert answer.status_code == 403, (attack, answer.text)
        assert "refuses" in answer.json()["message"], attack
    assert not engine.seen
    right = await proxy.call(consumer, "POST", "/v1.45/services/create", json=documents()[consumer])
    assert right.is_success, right.text


def twice(text: str) -> str:
    """Repeat a field of a body: Docker would merge both."""
    return text.replace('"Mounts": [', f'"Mounts": [{json.dumps(BIND)}], "Mounts": [', 1)


def written_otherwise(text: str) -> str:
    return text.replace('"tmpfs"', '"\\u0062ind"', 1)


def before_a_right_one(text: str) -> str:
    return json.dumps({"TaskTemplate": {"ContainerSpec": {"Mounts": [BIND]}}}) + text


@pytest.mark.parametrize("change", [twice, written_otherwise, before_a_right_one])
async def test_documents_that_two_readers_could_read_in_two_ways(
    change: Callable[[str], str], proxy: Proxy, engine: Engine
) -> None:
    text = change(json.dumps(documents()["service"]))
    assert text != json.dumps(documents()["service"])
    answer = await proxy.call("service", "POST", "/v1.45/services/create", content=text)
    assert answer.status_code == 403 or not [one for one in engine.texts if b"bind" in one]


@pytest.mark.parametrize("field", ["Image", "Command", "Args", "Env"])
async def test_on_a_nodes_own_network_only_the_platforms_program_runs(
    field: str, proxy: Proxy, engine: Engine
) -> None:
    client = proxy.client("service")
    for spec in (holder(), data_agent()):
        inside = spec["task_template"]["ContainerSpec"]
        inside[field] = "evil" if field == "Image" else ["PATH=/evil"]
        with pytest.raises(DockerRefused, match="refuses"):
            await client.call("create_service", **spec)
    client.close()
    assert not [one for one in engine.seen if one[0] == "POST"]


CACHE = {"Type": "volume", "Source": "minicluster_keeper", "Target": "/cluster-data"}
CACHE_ENV = "MINICLUSTER_DATA_CACHE"
PLANTED: dict[str, dict[str, Any]] = {
    "the cache in the home": {"Mounts": [{**CACHE, "Target": "/home/mini"}]},
    "the cache in the home, only read": {"Mounts": [{**CACHE, "Target": "/home/mini", "ReadOnly": True}]},
    "the cache there as well": {"Mounts": [CACHE, {**CACHE, "Target": "/home/mini"}]},
    "the cache by another way": {"Mounts": [{**CACHE, "Target": "/cluster-data/../home/mini"}]},
    "the cache below its folder": {"Mounts": [{**CACHE, "Target": "/cluster-data/sets"}]},
    "a user's home": {"Mounts": [CACHE, {**CACHE, "Source": "minicluster-home-ada", "Target": "/home/mini"}]},
    "an empty volume": {"Mounts": [{"Type": "volume", "Target": "/home/mini"}]},
    "memory": {"Mounts": [CACHE, {"Type": "tmpfs", "Target": "/home/mini"}]},
    "its folder in the home": {"Env": [f"{CACHE_ENV}=/home/mini/.local"]},
    "its folder twice": {"Env": [f"{CACHE_ENV}=/cluster-data", f"{CACHE_ENV}=/home/mini"]},
    "no folder": {"Env": [f"{CACHE_ENV}="]},
    "what lies in a home is loaded": {
        "Command": ["python", "-P", "-m", "minicluster.runtime.node.data_agent"]
    },
}


@pytest.mark.parametrize("change", PLANTED.values(), ids=PLANTED)
async def test_on_a_nodes_own_network_the_program_finds_no_file_that_was_planted(
    change: dict[str, Any], proxy: Proxy, engine: Engine
) -> None:
    """Python may run files in its user's home before the program starts."""
    client = proxy.client("service")
    spec = data_agent()
    spec["task_template"]["ContainerSpec"] |= change
    with pytest.raises(DockerRefused, match=rf"refuses.* {next(iter(change))}: "):
        await client.call("create_service", **spec)
    assert not [one for one in engine.seen if one[0] == "POST"]
    await client.call("create_service", **data_agent())
    client.close()


async def test_what_holds_gpus_mounts_nothing(proxy: Proxy, engine: Engine) -> None:
    client = proxy.client("service")
    for mount in (CACHE, {"Type": "tmpfs", "Target": "/opt"}):
        spec = holder()
        spec["task_template"]["ContainerSpec"]["Mounts"] = [mount]
        with pytest.raises(DockerRefused, match=r"refuses.* Mounts: "):
            await client.call("create_service", **spec)
    client.close()
    assert not [one for one in engine.seen if one[0] == "POST"]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("networks", {"Driver": "host"}),
        ("networks", {"Driver": "macvlan", "Options": {"parent": "eth0"}}),
        ("networks", {"Attachable": True}),
        ("networks", {"Ingress": True}),
        ("networks", {"Name": "minicluster"}),
        ("networks", {"ConfigFrom": {"Network": "x"}}),
        ("secrets", {"Name": "minicluster_tls_key_1a2b3c4d"}),
        ("secrets", {"Driver": {"Name": "evil"}}),
        ("secrets", {"Templating": {"Name": "golang"}}),
    ],
)
async def test_other_networks_and_secrets_are_not_made(
    kind: str, change: dict[str, Any], proxy: Proxy, engine: Engine
) -> None:
    named = network_spec(4) if kind == "networks" else secret_spec(TASK)
    document = {"Name": named["name"], "Labels": named["labels"]}
    more = {"Driver": "overlay", "Attachable": False} if kind == "networks" else {"Data": "eA=="}
    path = f"/v1.45/{kind}/create"
    assert (await proxy.call("service", "POST", path, json=document | more)).is_success
    assert (await proxy.call("service", "POST", path, json=document | more | change)).status_code == 403
    assert len(engine.seen) == 1


async def test_a_refusal_says_where_and_what_to_do(proxy: Proxy) -> None:
    mount = server_spec.further_mount("/srv/other", "/other", read_only=True)
    client = proxy.client("hub")
    with pytest.raises(DockerRefused) as refused:
        await client.call("create_service", **server(mounts=[mount]))
    client.close()
    assert "/srv/other" in refused.value.message and "--server-mount" in refused.value.message


async def test_large_documents_pass(proxy: Proxy, engine: Engine) -> None:
    large = replace(TASK, token="x" * 500_000)
    client = proxy.client("service")
    await client.call("create_secret", **secret_spec(large))
    client.close()
    assert len(engine.seen[-1][2]["Data"]) > 500_000


async def test_events_come_when_they_happen_and_again_after_a_restart(proxy: Proxy, engine: Engine) -> None:
    heard = 0

    def count_event() -> None:
        nonlocal heard
        heard += 1

    client = proxy.client("hub")
    watch = client.watch("node", count_event)
    await eventually(lambda: heard == 2)
    engine.happened.set()
    await eventually(lambda: heard == 3)
    proxy.stop()
    proxy.start()
    await eventually(lambda: heard >= 5)
    assert await client.call("nodes")
    watch.close()
    client.close()


async def test_an_engine_that_is_away_is_nothing_refused(proxy: Proxy, engine: Engine) -> None:
    """The caller treats the outcome as unknown and retries."""
    await engine.stop()
    client = proxy.client("service")
    for method, named in (("tasks", {}), ("create_service", task())):
        with pytest.raises(DockerUnavailable):
            await client.call(method, **named)
    engine.start()
    await client.call("create_service", **task())
    client.close()


async def test_each_socket_is_its_users_alone(proxy: Proxy) -> None:
    for consumer in CALLS:
        assert proxy.socket(consumer).stat().st_mode & 0o777 == 0o600
