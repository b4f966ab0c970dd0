"""The plan of a cluster: turns the choices and a few facts into arguments of Docker's API; pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from minicluster_hub.cluster.docker_proxy.settings import ROLE as DOCKER_PROXY
from minicluster_hub.cluster.docker_proxy.settings import SOCKET
from minicluster_hub.cluster.firewall.sweep import VOLUMES
from minicluster_hub.cluster.plan import drafts, policy_container
from minicluster_hub.cluster.plan.choices import Choices
from minicluster_hub.cluster.plan.drafts import ROOT, Facts, ServiceDraft, SwarmObject, service_name
from minicluster_hub.cluster.plan.record import PlatformImages
from minicluster_hub.engines.swarm.names import CLUSTER, DATA_ROLE, SERVES_NETWORK, labels

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
"""These need the notebook image, which is large: `up` does not wait for them, `status` shows their progress.

The job service starts the data set agents, each with the token of its node.
"""

MANAGERS = "node.role==manager"
SOCKETS_ROLE = "sockets"
"""Role of volumes without data."""
_S = 1_000_000_000


def networks(*, own_policies: bool) -> list[dict[str, Any]]:
    """Return the arguments of create_network: one that hub, proxy, job service and notebooks share, one where
    the job services reach the replicas of models, and one without a way out for each sealed off service: with
    no network at all it would get Docker's bridge.
    """
    common = {"driver": "overlay", "labels": labels("network")}
    sealed_off = [DOCKER_PROXY, *([policy_container.ROLE] if own_policies else [])]
    return [
        {"name": CLUSTER, "attachable": True, **common},
        {"name": SERVES_NETWORK, **common},
        *({"name": service_name(role), "internal": True, **common} for role in sealed_off),
    ]


def services(choices: Choices, facts: Facts) -> list[dict[str, Any]]:
    """Return the arguments of create_service for each service, in the order in which they start.

    Without a notebook image (its push is not complete): only the services that images need.
    """
    found = [
        drafts.registry(facts),
        *([drafts.cache(facts)] if facts.upstream else []),
        drafts.relay(facts),
    ]
    if facts.images.notebook:
        found += [
            drafts.firewall(choices, facts),
            drafts.eviction(choices, facts),
            drafts.docker_proxy(choices, facts),
            drafts.images(facts),
            *([drafts.policy(choices, facts)] if facts.own_policies else []),
            drafts.service(choices, facts),
            drafts.hub(choices, facts),
            drafts.proxy(choices, facts),
        ]
    return [_spec(draft, facts) for draft in found]


def sweep(image: str, manager_id: str, socket_path: str, *, volumes: bool) -> dict[str, Any]:
    """Return the arguments of create_service for the sweep of each node. volumes: remove these, too."""
    facts = Facts(manager_id, "", socket_path, 0, PlatformImages(hub=image))
    draft = ServiceDraft(
        role="sweep",
        image=image,
        args=("run", "sweep", *((VOLUMES,) if volumes else ())),
        user=ROOT,
        docker_socket=True,
        capabilities=("CAP_NET_ADMIN",),
        everywhere=True,
        once=True,
    )
    return _spec(draft, facts)


def publisher(image: str, node_id: str, password: SwarmObject) -> dict[str, Any]:
    """Return the arguments of create_service for a container that gets the publisher's secret."""
    name = "registry_publisher"
    facts = Facts(node_id, "", "", 0, PlatformImages(hub=image), secrets={name: password})
    draft = ServiceDraft("publisher", image, command=("sleep", "60"), secrets=(name,), user=ROOT, once=True)
    return _spec(draft, facts)


def _spec(draft: ServiceDraft, facts: Facts) -> dict[str, Any]:
    """Return the arguments of create_service, with a label that shows whether the service must change."""
    name = service_name(draft.role)
    is_global = draft.everywhere or draft.each_manager
    ports = [
        {"Protocol": "tcp", "TargetPort": inside, "PublishedPort": published, "PublishMode": "host"}
        for published, inside in draft.ports.items()
    ]
    spec: dict[str, Any] = {
        "name": name,
        "mode": {"Global": {}} if is_global else {"Replicated": {"Replicas": 1}},
        "endpoint_spec": {"Mode": "dnsrr", "Ports": ports},
        # A platform service stays at its new version even if that fails: `up` reports it.
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


def _container(draft: ServiceDraft, facts: Facts) -> dict[str, Any]:
    environment = {"NVIDIA_VISIBLE_DEVICES": "void", **draft.environment}
    secrets = {name: facts.secrets[name] for name in draft.secrets}
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
        "Secrets": [
            {"SecretID": one.id, "SecretName": one.name, "File": _file(name, draft.user)}
            for name, one in secrets.items()
        ],
        "Configs": [
            {
                "ConfigID": facts.configs[name].id,
                "ConfigName": facts.configs[name].name,
                "File": _file(path, draft.user),
            }
            for name, path in draft.configs.items()
        ],
    }
    if draft.sealed_off or draft.read_only:
        container["ReadOnly"] = True
    if draft.sealed_off:
        # Docker's resolver would query servers outside for the sealed off container.
        container["DNSConfig"] = {"Nameservers": ["127.0.0.1"]}
    if draft.command:
        container["Command"] = list(draft.command)
    if draft.args:
        container["Args"] = list(draft.args)
    if draft.docker_socket:
        container["Groups"] = [str(facts.socket_gid)]
    return container


def _file(name: str, user: str) -> dict[str, Any]:
    return {"Name": name, "UID": user, "GID": user, "Mode": 0o400}


def _mounts(draft: ServiceDraft, facts: Facts) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = []
    if draft.data_dir and facts.shared_data and not draft.everywhere:
        source = f"{facts.shared_data}/{draft.role}"
        mounts.append({"Type": "bind", "Source": source, "Target": draft.data_dir})
    elif draft.data_dir:
        mounts.append(_volume(draft.role, draft.data_dir, draft.role))
    mounts += [_volume(name, target, SOCKETS_ROLE) for name, target in draft.sockets.items()]
    if draft.policy_socket:
        mounts.append(policy_container.mount(read_only=not draft.sealed_off))
    if draft.docker_socket:
        mounts.append({"Type": "bind", "Source": facts.socket_path, "Target": SOCKET})
    return mounts


def _volume(name: str, target: str, role: str) -> dict[str, Any]:
    """Return the mount of a volume of the node."""
    options = {"Labels": labels(role)}
    return {"Type": "volume", "Source": service_name(name), "Target": target, "VolumeOptions": options}


def _restart(draft: ServiceDraft) -> dict[str, Any]:
    """Return the restart policy. A node without the image tries again; a server is always restarted."""
    if draft.once:
        return {"Condition": "on-failure", "Delay": 20 * _S}
    return {"Condition": "any", "Delay": _S}


def _placement(draft: ServiceDraft, facts: Facts) -> dict[str, Any]:
    only_here = draft.image == facts.images.hub and not facts.images.hub_is_published
    if draft.everywhere and not only_here:
        return {}
    if facts.shared_data and not only_here:
        return {"Constraints": [MANAGERS]}
    return {"Constraints": [f"node.id=={facts.manager_id}"]}


def _networks(draft: ServiceDraft) -> list[dict[str, Any]]:
    if draft.everywhere:
        return [{"Target": "host"}]
    if draft.sealed_off:
        return [{"Target": service_name(draft.role)}]
    more = [{"Target": SERVES_NETWORK}] if draft.reaches_replicas else []
    return [{"Target": CLUSTER, "Aliases": [draft.role]}, *more]
