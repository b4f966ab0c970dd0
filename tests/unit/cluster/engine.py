"""A fake Docker Engine of one machine: it stores objects, and runs each service at once."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.engines.swarm.docker import DockerMissing, DockerRefused

DIGEST = "sha256:" + "d" * 64


class FakeEngine(Daemon):
    """images: digests in a registry, by name. answers: outputs of commands in containers."""

    def __init__(self, images: tuple[str, ...], answers: Callable[[list[str]], tuple[int, str]]) -> None:
        self.images = images
        self.answers = answers
        self.kept: dict[str, dict[str, Any]] = {
            kind: {} for kind in ("secret", "config", "network", "service", "volume")
        }
        self.in_swarm = False
        self.calls: list[str] = []
        self._ids = count(1)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(method)
        verb, _, kind = method.partition("_")
        if verb in ("create", "remove") and kind in self.kept:
            return getattr(self, f"_{verb}")(kind, *args, **kwargs)
        if method.removesuffix("s") in self.kept:
            return self._list(method.removesuffix("s"), **kwargs)
        return getattr(self, method)(*args, **kwargs)

    once = call

    def run_in(self, container_id: str, command: list[str]) -> tuple[int, str]:
        return self.answers(command)

    def _create(self, kind: str, name: str, data: bytes = b"", **more: Any) -> dict[str, str]:
        if any(one["Spec"]["Name"] == name for one in self.kept[kind].values()):
            raise DockerRefused(f"{name} is there")
        number = next(self._ids)
        spec = {"Name": name, "Labels": more.get("labels") or {}, "Data": base64.b64encode(data).decode()}
        if kind == "service":
            spec |= {"Mode": more["mode"], "TaskTemplate": more["task_template"]}
        entry = {
            "ID": f"{kind}-{number}",
            "Id": f"{kind}-{number}",
            "CreatedAt": f"{number:09}",
            "Spec": spec,
        }
        self.kept[kind][entry["ID"]] = {**entry, "Version": {"Index": number}}
        return entry

    def update_service(self, service_id: str, version: int, name: str, **more: Any) -> None:
        spec = self.kept["service"][service_id]["Spec"]
        spec |= {"Labels": more["labels"], "Mode": more["mode"], "TaskTemplate": more["task_template"]}

    def _remove(self, kind: str, name: str, force: bool = False) -> None:
        found = [key for key, one in self.kept[kind].items() if name in (key, one["Spec"]["Name"])]
        if not found:
            raise DockerMissing(name)
        del self.kept[kind][found[0]]

    def _list(self, kind: str, names: list[str] | None = None, filters: Any = None) -> Any:
        found = list(self.kept[kind].values())
        if names is not None:
            return [one for one in found if f"^{one['Spec']['Name']}$" in names]
        wanted = (filters or {}).get("label", [])
        for pair in [wanted] if isinstance(wanted, str) else wanted:
            name, _, value = pair.partition("=")
            found = [one for one in found if one["Spec"]["Labels"].get(name) == value]
        return {"Volumes": found} if kind == "volume" else found

    def names(self, kind: str) -> list[str]:
        return [one["Spec"]["Name"] for one in self.kept[kind].values()]

    # --- one node, and its tasks ------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        state = "active" if self.in_swarm else "inactive"
        remote = [{"NodeID": "node-a", "Addr": "10.0.0.1:2377"}]
        swarm = {"LocalNodeState": state, "ControlAvailable": self.in_swarm, "NodeID": "node-a"}
        return {"Swarm": {**swarm, "RemoteManagers": remote}}

    def init_swarm(self, advertise_addr: str | None) -> None:
        self.in_swarm = True

    def leave_swarm(self, force: bool) -> None:
        self.in_swarm = False

    def inspect_swarm(self) -> dict[str, Any]:
        return {"JoinTokens": {"Worker": "SWMTKN-1"}}

    def nodes(self) -> list[dict[str, Any]]:
        about = {"Hostname": "pc-1", "Engine": {"EngineVersion": "26.1.5"}, "Resources": {}}
        return [
            {
                "ID": "node-a",
                "Spec": {"Role": "manager", "Availability": "active", "Labels": {}},
                "Description": about,
                "Status": {"State": "ready", "Addr": "10.0.0.1"},
                "ManagerStatus": {"Leader": True, "Reachability": "reachable", "Addr": "10.0.0.1:2377"},
            }
        ]

    def tasks(self, filters: Any = None) -> list[dict[str, Any]]:
        return [_task(one) for one in self.kept["service"].values()]

    def containers(self, all: bool = False, filters: Any = None) -> list[dict[str, str]]:
        name = str(filters["label"]).rpartition("=")[2]
        return [{"Id": f"container of {name}"}] if name in self.names("service") else []

    def inspect_service(self, name: str) -> Mapping[str, Any]:
        for one in self.kept["service"].values():
            if name in (one["ID"], one["Spec"]["Name"]):
                return one
        raise DockerMissing(name)

    def inspect_config(self, config_id: str) -> Mapping[str, Any]:
        return self.kept["config"][config_id]

    def inspect_container(self, name: str) -> Mapping[str, Any]:
        return {"Config": {"Image": "lab/hub:1"}, "Mounts": []}

    def inspect_image(self, name: str) -> Mapping[str, Any]:
        return {"Id": "sha256:1d", "RepoDigests": [f"{name.partition(':')[0]}@{DIGEST}"], "Config": {}}

    def inspect_distribution(self, name: str) -> Mapping[str, Any]:
        if not name.startswith(self.images):
            raise DockerMissing(name)
        return {"Descriptor": {"digest": DIGEST}}

    def tag(self, image: str, repository: str, tag: str) -> None:
        assert "minicluster_registry" in self.names("service"), "pushed before there is a registry"

    def push(self, repository: str, **more: Any) -> list[dict[str, Any]]:
        assert more["auth_config"] == {"username": "publisher", "password": "word"}
        return [{"id": "layer", "status": "Pushed"}, {"aux": {"Digest": DIGEST}}]


def _task(service: Mapping[str, Any]) -> dict[str, Any]:
    template = service["Spec"]["TaskTemplate"]
    once = template["RestartPolicy"]["Condition"] == "on-failure"
    return {
        "NodeID": "node-a",
        "DesiredState": "running",
        "Spec": template,
        "Status": {"State": "complete" if once else "running"},
    }
