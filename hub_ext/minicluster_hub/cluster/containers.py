"""Runs commands in containers: in a platform service's, or in a temporary one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.errors import ClusterMissing, OptionUnusable
from minicluster_hub.cluster.plan import record
from minicluster_hub.cluster.plan.drafts import DATA_DIR, service_name
from minicluster_hub.engines.swarm.docker import DockerConflict, DockerMissing, DockerRefused
from minicluster_hub.engines.swarm.names import CLUSTER, NAME_LABEL

HUB_PROGRAM = ("python", "-P", "-m", "minicluster_hub.cluster", "run")
_POLL_S, _RESTART_LIMIT_S, _RUN_LIMIT_S = 0.3, 60.0, 60
_OWNERS = {"hub": "1000", "service": "1000", "registry": "0", "cache": "0"}


def run_in_service(daemon: Daemon, role: str, command: Sequence[str]) -> tuple[int, str]:
    """Run a command in the container of a platform service on this machine; return its exit code and output.

    If the container ends meanwhile, use the next one. Raises ClusterMissing if there is no container.
    """
    restarting, deadline = False, time.monotonic() + _RESTART_LIMIT_S
    while True:
        try:
            return daemon.run_in(_container_of(daemon, role), list(command))
        except (DockerConflict, DockerMissing, ClusterMissing) as error:
            restarting = restarting or not isinstance(error, ClusterMissing)
            if not restarting or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def run_in_hub(daemon: Daemon, words: Sequence[str]) -> tuple[int, str]:
    """Run one of our commands with the hub's data: in the hub's container, or in a temporary one."""
    command = [*HUB_PROGRAM, *words]
    try:
        return run_in_service(daemon, "hub", command)
    except ClusterMissing:
        known = record.load(daemon)
        if known is None or not known.choices.shared_data:
            raise
        # With shared data the hub may run on another manager, and this engine cannot enter its containers.
        folder = f"{known.choices.shared_data}/hub"
        return run_once(daemon, known.images.hub, command, folder=folder, user="1000", network=CLUSTER)


def make_shared_folders(daemon: Daemon, image: str, path: str) -> None:
    """Make the platform services' folders in the managers' shared folder. Raises OptionUnusable."""
    made = " && ".join(
        f"mkdir -p -m 700 {DATA_DIR}/{role} && chown {owner}:{owner} {DATA_DIR}/{role}"
        for role, owner in _OWNERS.items()
    )
    try:
        code, output = run_once(daemon, image, ["sh", "-c", made], folder=path)
    except DockerRefused as error:
        raise OptionUnusable(
            f"--shared-data {path} cannot be mounted: {error.message}. The folder must exist on each manager,"
            " at the same path."
        ) from error
    if code:
        raise OptionUnusable(
            f"--shared-data {path} cannot be prepared: {output}. On NFS, export it with no_root_squash."
        )


def run_once(
    daemon: Daemon,
    image: str,
    command: Sequence[str],
    *,
    folder: str = "",
    user: str = "0",
    network: str = "none",
) -> tuple[int, str]:
    """Run a command in a temporary container; return its exit code and output (if it failed, with stderr).

    folder: a folder of this machine, mounted as the data folder.
    """
    mounts = [{"Type": "bind", "Source": folder, "Target": DATA_DIR}] if folder else []
    container = daemon.call(
        "create_container",
        image,
        list(command[1:]),
        entrypoint=list(command[:1]),
        user=user,
        environment={"MINICLUSTER_DATA": DATA_DIR},
        host_config=daemon.call("create_host_config", mounts=mounts, network_mode=network),
    )["Id"]
    try:
        daemon.call("start", container)
        code = daemon.call("wait", container, timeout=_RUN_LIMIT_S)["StatusCode"]
        return int(code), daemon.call("logs", container, stdout=True, stderr=bool(code)).decode().strip()
    finally:
        daemon.call("remove_container", container, force=True)


def own_image(container: Mapping[str, Any] | None) -> str:
    """Return the name of the image that the command runs in; "" outside of a container."""
    return str(container["Config"]["Image"]) if container else ""


def _container_of(daemon: Daemon, role: str) -> str:
    name = service_name(role)
    filters = {"label": f"{NAME_LABEL}={name}", "status": "running"}
    found: list[Mapping[str, str]] = daemon.call("containers", filters=filters)
    if not found:
        raise ClusterMissing(f"The service {name} does not run on this machine. See status; `up` makes it.")
    return str(found[0]["Id"])
