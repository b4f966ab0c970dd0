"""Where the Docker proxy listens, and the variables that tell it; haproxy.cfg reads them, too."""

from __future__ import annotations

ROLE = "docker-proxy"
SOCKET = "/var/run/docker.sock"
FOLDER = "/srv/docker-proxy"
"""In the hub's image: with a folder for each of those who may call Docker."""
SOCKET_ENV, FOLDER_ENV, GATE_ENV = "DOCKER_PROXY_ENGINE", "DOCKER_PROXY_SOCKETS", "DOCKER_PROXY_GATE"
TOLD_ENV = "DOCKER_PROXY_TOLD"
"""What `up` knows of the cluster, as JSON: rules.Told."""


def docker_socket(consumer: str) -> dict[str, str]:
    """Return the volume of the manager that holds a consumer's socket, with where it is mounted."""
    return {f"docker-{consumer}": f"{FOLDER}/{consumer}"}


def docker_host(consumer: str) -> dict[str, str]:
    """Return what leads docker-py to a consumer's own socket."""
    return {"DOCKER_HOST": f"unix://{FOLDER}/{consumer}/docker.sock"}
