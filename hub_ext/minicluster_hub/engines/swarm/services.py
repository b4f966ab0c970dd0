"""What the services that Minicluster makes in a Swarm have in common, as Docker's API wants it: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minicluster_hub.engines.swarm.view import GPU_KIND

HOST_NETWORK = {"Target": "host"}
SECOND_NS = 1_000_000_000


def one_task_service(
    name: str,
    container: Mapping[str, Any],
    *,
    constraint: str,
    network: Mapping[str, Any],
    log: Mapping[str, str],
    resources: Mapping[str, Any] | None = None,
    restart: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the arguments of create_service for one container without rights.

    container: more of its ContainerSpec. log: how much Docker's own driver keeps of its output. restart:
    None: it is never restarted.
    """
    template: dict[str, Any] = {
        "ContainerSpec": {
            "Init": True,
            "CapabilityDrop": ["ALL"],
            "Privileges": {"NoNewPrivileges": True},
            **container,
        },
        "RestartPolicy": restart or {"Condition": "none"},
        "Placement": {"Constraints": [constraint]},
        "Networks": [network],
        "LogDriver": {"Name": "json-file", "Options": log},
    }
    if resources is not None:
        template["Resources"] = resources
    mode = {"Replicated": {"Replicas": 1}}
    return {"name": name, "mode": mode, "endpoint_spec": {"Mode": "dnsrr"}, "task_template": template}


def labelled(spec: dict[str, Any], marks: dict[str, str]) -> dict[str, Any]:
    """Label a service and its container: Docker's list of tasks shows only the container's labels."""
    spec["labels"] = spec["task_template"]["ContainerSpec"]["Labels"] = marks
    return spec


def secret_file(secret_name: str, file_name: str, user: str) -> dict[str, Any]:
    """Return a secret as a file that only this user can read; the secret's id is still missing."""
    return {
        "SecretName": secret_name,
        "File": {"Name": file_name, "UID": user, "GID": user, "Mode": 0o400},
    }


def shared_memory(size_bytes: int) -> dict[str, Any]:
    """Return the mount of /dev/shm: Docker's own has 64 MB, which a DataLoader's processes fill at once."""
    options = {"SizeBytes": size_bytes, "Mode": 0o1777}
    return {"Type": "tmpfs", "Target": "/dev/shm", "TmpfsOptions": options}  # noqa: S108


def reserved_gpus(count: int) -> list[dict[str, Any]]:
    return [{"DiscreteResourceSpec": {"Kind": GPU_KIND, "Value": count}}]
