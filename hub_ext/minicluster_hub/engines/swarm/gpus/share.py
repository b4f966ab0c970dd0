"""What a container needs that has a share of a GPU: variables and mounts, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minicluster.wire.machines.gpu_share import MPS_MODULE, share_environment
from minicluster_hub.engines.swarm.names import CLUSTER, labels

SHARED_ROLE = "shared-gpu"
COMMAND = ["python", "-P", "-s", "-m", MPS_MODULE]
PIPES = "/run/minicluster-mps"
DRIVER = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
_PIPES_BYTES, _SHM_BYTES = 64 << 20, 2 << 30


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """gpu: its id, as Swarm assigned it. slot: the number in the ledger of the node's slots."""

    gpu: str
    slot: int

    def environment(self) -> dict[str, str]:
        """Return the variables of a container with a share of it."""
        visible = dict.fromkeys(("DOCKER_RESOURCE_GPU", "NVIDIA_VISIBLE_DEVICES"), self.gpu)
        return {**visible, **DRIVER, **share_environment(PIPES)}


def shared_mounts(slot: int) -> list[dict[str, Any]]:
    """Return the mounts of all containers with a share of a slot: MPS's pipes, and /dev/shm."""
    return [
        _in_memory(f"{CLUSTER}-mps-{slot}", PIPES, _PIPES_BYTES),
        _in_memory(f"{CLUSTER}-shm-{slot}", "/dev/shm", _SHM_BYTES),  # noqa: S108
    ]


def _in_memory(name: str, target: str, size_bytes: int) -> dict[str, Any]:
    options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={size_bytes},mode=1777"}
    how = {
        "NoCopy": True,
        "Labels": labels(SHARED_ROLE),
        "DriverConfig": {"Name": "local", "Options": options},
    }
    return {"Type": "volume", "Source": name, "Target": target, "VolumeOptions": how}
