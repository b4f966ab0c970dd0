"""The Docker proxy's sockets and environment variables; haproxy.cfg reads these, too."""

from __future__ import annotations

ROLE = "docker-proxy"
SOCKET = "/var/run/docker.sock"
FOLDER = "/srv/docker-proxy"
"""A folder in the hub's image, with a folder for each consumer: hub and job service."""
SOCKET_ENV, FOLDER_ENV, GATE_ENV = "DOCKER_PROXY_ENGINE", "DOCKER_PROXY_SOCKETS", "DOCKER_PROXY_GATE"
RULES_ENV = "DOCKER_PROXY_TOLD"
"""rules.RuleSettings as JSON."""


def docker_socket(consumer: str) -> dict[str, str]:
    """Return the volume of the manager that holds a consumer's socket, with its mount point."""
    return {f"docker-{consumer}": f"{FOLDER}/{consumer}"}


def docker_host(consumer: str) -> dict[str, str]:
    """Return the variable that tells docker-py a consumer's socket."""
    return {"DOCKER_HOST": f"unix://{FOLDER}/{consumer}/docker.sock"}
