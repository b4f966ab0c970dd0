"""The container of a lab's custom policies: the folder that `up --policies` reads, and its plan."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from minicluster_hub.engines.swarm.names import CLUSTER, labels

ROLE = "policy"
FOLDER = "/etc/minicluster/policies"
SOCKET_DIR = "/run/minicluster-policy"
SOCKET = f"{SOCKET_DIR}/socket"
USER = "1001"
"""A user that no other container has: neither the platform's nor those of tasks and notebook servers."""
LIMITS = {"MemoryBytes": 5 << 29, "Pids": 64}
ENTRY_POINTS = "minicluster.policies"
"""The group of entry points; the job service uses the same one."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,31}")
_MOST_BYTES = 400_000
"""Limit of all files: the cluster's record stores them, a Docker config of at most 1,000,000 bytes."""


def policies(path: str) -> dict[str, str]:
    """Return the policies of a folder: their source code by name."""
    folder = Path(path)
    try:
        found = {
            file.stem: file.read_text("utf-8") for file in sorted(folder.iterdir()) if file.suffix == ".py"
        }
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{path} cannot be read ({error.strerror}); inside the container it has to be mounted, like"
            " -v $PWD/policies:/policies:ro and --policies /policies"
        ) from error
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"{path} has a file that is not in UTF-8") from error
    _check(path, found)
    return found


def _check(path: str, found: Mapping[str, str]) -> None:
    for name in found:
        if not _NAME.fullmatch(name):
            raise argparse.ArgumentTypeError(
                f"{path}/{name}.py: a policy's name has letters, digits, - and _ only, 32 at the most"
            )
    size = sum(len(text.encode()) for text in found.values())
    if size > _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{path}: its policies have {size} bytes; {_MOST_BYTES} is the most")


def are_installed() -> bool:
    """Whether packages of this image contain policies."""
    return bool(entry_points(group=ENTRY_POINTS))


def config_name(name: str) -> str:
    """Return the config name of a policy's file."""
    return f"{ROLE}_{name}"


def files(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the mount points of policies' files by config: the job service reads their descriptions."""
    return {config_name(name): f"{FOLDER}/{name}.py" for name in texts}


def service_options(*, needed: bool) -> list[str]:
    """Return the job service's options: it never runs custom policies in its own container."""
    if not needed:
        return ["--MiniclusterHub.policy_sandbox=none"]
    return [f"--MiniclusterHub.policy_sandbox={SOCKET}", f"--MiniclusterHub.policies_dir={FOLDER}"]


def mount(*, read_only: bool) -> dict[str, Any]:
    """Return the mount of the socket's folder: in memory, owned by USER, open to the platform's group."""
    options = {"type": "tmpfs", "device": "tmpfs", "o": f"size=64k,uid={USER},gid=1000,mode=2750"}
    return {
        "Type": "volume",
        "Source": f"{CLUSTER}_{ROLE}",
        "Target": SOCKET_DIR,
        "ReadOnly": read_only,
        "VolumeOptions": {
            "NoCopy": True,
            "Labels": labels(ROLE),
            "DriverConfig": {"Name": "local", "Options": options},
        },
    }
