"""The Docker proxy as a service of the platform: pure."""

from __future__ import annotations

import json
import re

from minicluster_hub.cluster.plan.choices import Choices
from minicluster_hub.cluster.docker_proxy.rules import HUB, SERVICE
from minicluster_hub.cluster.docker_proxy.settings import (
    FOLDER,
    FOLDER_ENV,
    ROLE,
    SOCKET,
    SOCKET_ENV,
    TOLD_ENV,
    docker_socket,
)
from minicluster_hub.cluster.plan.drafts import LARGE_BYTES, Draft, Facts, limits
from minicluster_hub.engines.swarm.shared_homes import volume_options

_HOST_NETWORK = re.compile(r"--SwarmEngine\.host_network=(True|true|1)")


def docker_proxy(choices: Choices, facts: Facts) -> Draft:
    """On each manager that hub or job service may run on."""
    homes = choices.shared_homes
    told = {
        "image": facts.images.notebook,
        "host_network": any(map(_HOST_NETWORK.fullmatch, choices.service_options)),
        "homes": {"type": "nfs", **volume_options(homes)} if homes else {},
        "mounts": choices.server_mounts,
    }
    return Draft(
        role=ROLE,
        image=facts.images.hub,
        args=("run", ROLE),
        environment={SOCKET_ENV: SOCKET, FOLDER_ENV: FOLDER, TOLD_ENV: json.dumps(told)},
        sockets=docker_socket(HUB) | docker_socket(SERVICE),
        socket=True,
        each_manager=bool(facts.shared_data),
        sealed_off=True,
        limits=limits(LARGE_BYTES, 64),
    )
