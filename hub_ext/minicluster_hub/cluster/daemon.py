"""The Docker API for a command: synchronous calls that raise DockerError."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from minicluster_hub.cluster.errors import EngineUnusable
from minicluster_hub.engines.swarm.docker import DockerMissing, DockerRefused, DockerUnavailable, translated

SOCKET = "/var/run/docker.sock"
LEAST_VERSION = (23, 0, 2)
"""Older ones reject a service that asks for a generic resource and a network (moby/moby#44378)."""
LEAST_VERSION_TEXT = ".".join(map(str, LEAST_VERSION))

_TIMEOUT_S, _RETRY_S, _PAUSE_S = 60, 10.0, 0.3
_CONTAINER_ID = re.compile(r"/containers/([0-9a-f]{64})/")


class Daemon:
    """The Docker Engine of the machine that the command runs on."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def connect(cls) -> Self:
        """Return a client for $DOCKER_HOST or the socket. Raises EngineUnusable."""
        import docker.errors
        import docker.utils

        try:
            return cls(docker.APIClient(**docker.utils.kwargs_from_env(), version="auto", timeout=_TIMEOUT_S))
        except docker.errors.DockerException as error:
            reason = str(error).rpartition(": ")[2].strip("() ") or type(error).__name__
            raise EngineUnusable(
                f"The Docker Engine does not answer ({reason}). Start the container with"
                f" -v {SOCKET}:{SOCKET}, on a machine whose engine runs."
            ) from error

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of docker-py's APIClient. Raises DockerError.

        While the Swarm elects a leader, the call is repeated. So DockerConflict can mean that an earlier try
        created the object.
        """
        deadline = time.monotonic() + _RETRY_S
        while True:
            try:
                return getattr(self._client, method)(*args, **kwargs)
            except Exception as error:
                translation = translated(error)
                if not isinstance(translation, DockerUnavailable) or time.monotonic() > deadline:
                    raise translation from error
            time.sleep(_PAUSE_S)

    def once(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call without repeating. Raises DockerError."""
        try:
            return getattr(self._client, method)(*args, **kwargs)
        except Exception as error:
            raise translated(error) from error

    def stream(self, method: str, *args: Any, **kwargs: Any) -> Iterable[Mapping[str, Any]]:
        """Yield the progress of a pull or push. Raises DockerRefused with the engine's message."""
        for line in self.call(method, *args, stream=True, decode=True, **kwargs):
            if "error" in line:
                raise DockerRefused(str(line["error"]).strip())
            yield line

    def remove(self, method: str, name: str) -> None:
        """Call a method that removes an object. Ignore an object that is gone already."""
        with suppress(DockerMissing):
            self.call(method, name)

    def run_in(self, container_id: str, command: list[str]) -> tuple[int, str]:
        """Run a command in a running container; return its exit code and what it printed."""
        made = self.call("exec_create", container_id, command)
        output = self.call("exec_start", made["Id"])
        code = self.call("exec_inspect", made["Id"])["ExitCode"]
        return int(code or 0), output.decode(errors="replace").strip()


def check_engine(daemon: Daemon) -> str:
    """Return the engine's version. Raises EngineUnusable if it is too old."""
    version = str(daemon.call("version")["Version"])
    if is_too_old(version):
        raise EngineUnusable(
            f"This machine has Docker Engine {version}; Minicluster needs {LEAST_VERSION_TEXT} or newer,"
            " since older ones refuse GPUs together with a network. Install a newer engine."
        )
    return version


def is_too_old(version: str) -> bool:
    return version_numbers(version) < LEAST_VERSION


def version_numbers(version: str) -> tuple[int, ...]:
    """Return 26.1.5+dfsg1 as (26, 1, 5)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def own_container(daemon: Daemon) -> Mapping[str, Any] | None:
    """Return the engine's description of this program's container; None outside of a container."""
    found = None
    with suppress(OSError):
        found = _CONTAINER_ID.search(Path("/proc/self/mountinfo").read_text())
    name = found.group(1) if found else os.uname().nodename
    try:
        return daemon.call("inspect_container", name)
    except DockerMissing:
        return None


def socket_on_host(own: Mapping[str, Any] | None) -> tuple[str, int]:
    """Return the path of the engine's socket on its machine, and the id of the group that may use it."""
    host = os.environ.get("DOCKER_HOST", "")
    here = host.removeprefix("unix://") if host.startswith("unix://") else SOCKET
    source = here
    for mount in own["Mounts"] if own else ():
        if mount.get("Destination") in (here, here.replace("/var/run/", "/run/")):
            source = mount["Source"]
    try:
        return source, Path(here).stat().st_gid
    except OSError as error:
        raise EngineUnusable(
            f"There is no {here} ({error.strerror}). Start the container with -v {SOCKET}:{SOCKET}: the"
            " cluster's Docker proxy needs the engine's socket and its group."
        ) from error
