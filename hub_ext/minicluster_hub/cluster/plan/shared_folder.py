"""The folder that all managers share: its parts, made before services mount them; and what is done in it."""

from __future__ import annotations

from typing import Any

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.errors import OptionUnusable
from minicluster_hub.cluster.plan.drafts import DATA_DIR
from minicluster_hub.engines.swarm.docker import DockerRefused
from minicluster_hub.engines.swarm.names import CLUSTER

_OWNERS = {"hub": "1000", "service": "1000", "registry": "0", "cache": "0"}
_WITHIN_S = 60


def prepare(daemon: Daemon, image: str, path: str) -> None:
    """Make the folders of the platform's services. Raises OptionUnusable."""
    made = " && ".join(
        f"mkdir -p -m 700 {DATA_DIR}/{role} && chown {owner}:{owner} {DATA_DIR}/{role}"
        for role, owner in _OWNERS.items()
    )
    try:
        code, said = run(daemon, image, ["sh", "-c", made], {"source": path, "user": "0"})
    except DockerRefused as error:
        raise OptionUnusable(
            f"--shared-data {path} cannot be mounted: {error.message}. It has to be there, at the same path,"
            " on each manager."
        ) from error
    if code:
        raise OptionUnusable(
            f"--shared-data {path} cannot be prepared: {said}. On NFS, root of the managers has to be root"
            " there (no_root_squash)."
        )


def run_hub(daemon: Daemon, image: str, path: str, words: list[str]) -> tuple[int, str]:
    """Do in the hub's folder and network what is else done in its container, wherever that runs."""
    command = ["python", "-P", "-m", "minicluster_hub.cluster", "run", *words]
    return run(daemon, image, command, {"source": f"{path}/hub", "user": "1000"}, network=CLUSTER)


def run(
    daemon: Daemon, image: str, command: list[str], place: dict[str, str], network: str | None = None
) -> tuple[int, str]:
    """Run a command of the hub image with a folder of this machine; return its exit code and what it said."""
    mount = {"Type": "bind", "Source": place["source"], "Target": DATA_DIR}
    settings: dict[str, Any] = {"mounts": [mount], "network_mode": network or "none"}
    container = daemon.call(
        "create_container",
        image,
        command[1:],
        entrypoint=command[:1],
        user=place["user"],
        environment={"MINICLUSTER_DATA": DATA_DIR},
        host_config=daemon.call("create_host_config", **settings),
    )["Id"]
    try:
        daemon.call("start", container)
        code = daemon.call("wait", container, timeout=_WITHIN_S)["StatusCode"]
        return int(code), daemon.call("logs", container, stdout=True, stderr=bool(code)).decode().strip()
    finally:
        daemon.call("remove_container", container, force=True)
