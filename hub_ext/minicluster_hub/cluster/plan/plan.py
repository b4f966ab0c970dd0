"""What a cluster consists of, as data: pure, from the choices and a few facts to Docker's own terms."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from minicluster_hub.cluster.docker_proxy.settings import ROLE as DOCKER_PROXY
from minicluster_hub.cluster.docker_proxy.settings import SOCKET
from minicluster_hub.cluster.firewall.sweep import VOLUMES
from minicluster_hub.cluster.plan import drafts
from minicluster_hub.cluster.plan.choices import Choices
from minicluster_hub.cluster.plan.drafts import (
    ROOT,
    Draft,
    Facts,
    Kept,
    docker_proxy,
    eviction,
    policy,
    relay,
)
from minicluster_hub.cluster.plan.record import Images
from minicluster_hub.cluster.policy_sandbox import container as policy_container
from minicluster_hub.engines.swarm.names import CLUSTER, DATA_ROLE, labels

PLATFORM = (
    "registry",
    "cache",
    "relay",
    "firewall",
    "eviction",
    DOCKER_PROXY,
    "images",
    policy_container.ROLE,
    "service",
    "hub",
    "proxy",
)
"""The roles of the platform's services, in the order in which they start."""
LATE = ("images", DATA_ROLE)
"""Those that need the notebook image, a large one: nobody waits for them; `status` tells how far they are.

The agents of data sets are made by the job service, each with the token of its node.
"""

MANAGERS = "node.role==manager"
SOCKETS_ROLE = "sockets"
"""Of volumes in which nothing is kept."""
_S = 1_000_000_000


def networks(*, own_policies: bool) -> list[dict[str, Any]]:
    """Return the arguments of create_network: what hub, proxy, job service and notebooks share, and one that
    leads nowhere for each service that is sealed off: without any it would have Docker's bridge.
    """
    common = {"driver": "overlay", "labels": labels("network")}
    sealed_off = [DOCKER_PROXY, *([policy_container.ROLE] if own_policies else [])]
    return [
        {"name": CLUSTER, "attachable": True, **common},
        *({"name": service_name(role), "internal": True, **common} for role in sealed_off),
    ]


def services(choices: Choices, facts: Facts) -> list[dict[str, Any]]:
    """Return the arguments of create_service for each service, in the order in which they start.

    Without a notebook image (it is still on its way into the registry) only what images come through.
    """
    found = [drafts.registry(facts), *([drafts.cache(facts)] if facts.upstream else []), relay(facts)]
    if facts.images.notebook:
        found += [
            drafts.firewall(choices, facts),
            eviction(choices, facts),
            docker_proxy(choices, facts),
            drafts.images(facts),
            *([policy(choices, facts)] if facts.own_policies else []),
            drafts.service(choices, facts),
            drafts.hub(choices, facts),
            drafts.proxy(choices, facts),
        ]
    return [finish(draft, facts) for draft in found]


def sweep(image: str, manager_id: str, socket_path: str, *, volumes: bool) -> dict[str, Any]:
    """Return the arguments of create_service for what clears up on each node. volumes: these, too."""
    facts = Facts(manager_id, "", socket_path, 0, Images(hub=image))
    draft = Draft(
        role="sweep",
        image=image,
        args=("run", "sweep", *((VOLUMES,) if volumes else ())),
        user=ROOT,
        socket=True,
        capabilities=("CAP_NET_ADMIN",),
        everywhere=True,
        once=True,
    )
    return finish(draft, facts)


def publisher(image: str, node_id: str, kept: Kept) -> dict[str, Any]:
    """Return the arguments of create_service for a container here in which the publisher's secret is read."""
    facts = Facts(node_id, "", "", 0, Images(hub=image), sealed={"registry_publisher": kept})
    secrets = ("registry_publisher",)
    draft = Draft("publisher", image, command=("sleep", "60"), secrets=secrets, user=ROOT, once=True)
    return finish(draft, facts)


def service_name(role: str) -> str:
    return f"{CLUSTER}_{role}"


def finish(draft: Draft, facts: Facts) -> dict[str, Any]:
    """Return the arguments of create_service, with a label by which a change is noticed."""
    name = service_name(draft.role)
    spec: dict[str, Any] = {
        "name": name,
        "mode": _mode(draft),
        "endpoint_spec": {"Mode": "dnsrr", "Ports": [_port(*pair) for pair in draft.ports.items()]},
        # A platform service goes on with its new version even if that one fails: `up` tells of it.
        "update_config": {"Parallelism": 0, "FailureAction": "continue", "Order": "stop-first"},
        "task_template": {
            "ContainerSpec": _container(draft, facts),
            "RestartPolicy": _restart(draft),
            "Placement": _placement(draft, facts),
            "Networks": _networks(draft),
            **({"Resources": {"Limits": dict(draft.limits)}} if draft.limits else {}),
            "LogDriver": {"Name": "json-file", "Options": {"max-size": "10m", "max-file": "3"}},
        },
    }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    spec["labels"] = labels(draft.role, name=name, spec=digest)
    spec["task_template"]["ContainerSpec"]["Labels"] = spec["labels"]
    return spec


def _mode(draft: Draft) -> dict[str, Any]:
    everywhere = draft.everywhere or draft.each_manager
    return {"Global": {}} if everywhere else {"Replicated": {"Replicas": 1}}


def _container(draft: Draft, facts: Facts) -> dict[str, Any]:
    environment = {"NVIDIA_VISIBLE_DEVICES": "void", **draft.environment}
    container: dict[str, Any] = {
        "Image": draft.image,
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "User": f"{draft.user}:{draft.user}",
        "Init": True,
        "StopGracePeriod": draft.grace_s * _S,
        "CapabilityDrop": ["ALL"],
        "CapabilityAdd": list(draft.capabilities),
        "Privileges": {"NoNewPrivileges": True},
        "Mounts": _mounts(draft, facts),
        "Secrets": [_secret(name, facts.sealed[name], draft.user) for name in draft.secrets],
        "Configs": [_config(facts.configs[name], path, draft.user) for name, path in draft.configs.items()],
    }
    if draft.sealed_off or draft.read_only:
        container["ReadOnly"] = True
    if draft.sealed_off:
        # Docker's own resolver would ask the outside on its behalf.
        container["DNSConfig"] = {"Nameservers": ["127.0.0.1"]}
    if draft.command:
        container["Command"] = list(draft.command)
    if draft.args:
        container["Args"] = list(draft.args)
    if draft.socket:
        container["Groups"] = [str(facts.socket_gid)]
    return container


def _mounts(draft: Draft, facts: Facts) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = []
    if draft.data_dir and facts.shared_data and not draft.everywhere:
        mounts.append(
            {"Type": "bind", "Source": f"{facts.shared_data}/{draft.role}", "Target": draft.data_dir}
        )
    elif draft.data_dir:
        mounts.append(_volume(draft.role, draft.data_dir, draft))
    mounts += [_volume(name, target, draft) for name, target in draft.sockets.items()]
    if draft.policy_socket:
        mounts.append(policy_container.mount(read_only=not draft.sealed_off))
    if draft.socket:
        mounts.append({"Type": "bind", "Source": facts.socket_path, "Target": SOCKET})
    return mounts


def _volume(name: str, target: str, draft: Draft) -> dict[str, Any]:
    """Return the mount of a volume of this machine."""
    options = {"Labels": labels(SOCKETS_ROLE if name in draft.sockets else draft.role)}
    return {"Type": "volume", "Source": service_name(name), "Target": target, "VolumeOptions": options}


def _secret(file: str, kept: Kept, user: str) -> dict[str, Any]:
    return {"SecretID": kept.id, "SecretName": kept.name, "File": _file(file, user)}


def _config(kept: Kept, path: str, user: str) -> dict[str, Any]:
    return {"ConfigID": kept.id, "ConfigName": kept.name, "File": _file(path, user)}


def _file(name: str, user: str) -> dict[str, Any]:
    return {"Name": name, "UID": user, "GID": user, "Mode": 0o400}


def _restart(draft: Draft) -> dict[str, Any]:
    """A node that lacks an image tries again until it has it; what serves is always started again."""
    if draft.once:
        return {"Condition": "on-failure", "Delay": 20 * _S}
    return {"Condition": "any", "Delay": _S}


def _placement(draft: Draft, facts: Facts) -> dict[str, Any]:
    at_home = draft.image == facts.images.hub and not facts.images.hub_is_published
    if draft.everywhere and not at_home:
        return {}
    if facts.shared_data and not at_home:
        return {"Constraints": [MANAGERS]}
    return {"Constraints": [f"node.id=={facts.manager_id}"]}


def _networks(draft: Draft) -> list[dict[str, Any]]:
    if draft.everywhere:
        return [{"Target": "host"}]
    if draft.sealed_off:
        return [{"Target": service_name(draft.role)}]
    return [{"Target": CLUSTER, "Aliases": [draft.role]}]


def _port(published: int, inside: int) -> dict[str, Any]:
    return {"Protocol": "tcp", "TargetPort": inside, "PublishedPort": published, "PublishMode": "host"}
