"""Checks of a single node: disk, shared memory and GPUs; and the probe's measurements for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from minicluster_hub.cluster.doctor.findings import Finding, failed, ok, warning

if TYPE_CHECKING:
    from minicluster_hub.cluster.doctor.facts import ClusterFacts
    from minicluster_hub.engines.swarm.view import SwarmNode

HOST_BIN = "/host/bin"
"""Where the host's /usr/bin is in the probe's container."""
SHM_BYTES = 1 << 30
"""Shared memory that the probe requests, as jobs do."""
MIN_TOOLKIT = (1, 19)
MIN_FREE_BYTES = 20 * 10**9
_GUIDE = "see the administrator's guide, GPU nodes"


class NodeState(BaseModel):
    """What the probe measures of its node.

    driver_gpus: GPUs that the node's driver knows. container_gpus: those that a container sees.
    toolkit: version of the NVIDIA container toolkit, "" if unknown.
    """

    model_config = ConfigDict(frozen=True)

    disk_free_bytes: int
    disk_total_bytes: int
    shm_bytes: int
    driver_gpus: int = 0
    container_gpus: int = 0
    toolkit: str = ""


def measure() -> NodeState:
    """Measure the node, in a probe's container on it."""
    disk, shm = os.statvfs("/"), os.statvfs("/dev/shm")  # noqa: S108
    driver = Path("/proc/driver/nvidia/gpus")
    return NodeState(
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
        disk_total_bytes=(disk.f_blocks - disk.f_bfree + disk.f_bavail) * disk.f_frsize,
        shm_bytes=shm.f_blocks * shm.f_frsize,
        driver_gpus=len(list(driver.iterdir())) if driver.is_dir() else 0,
        container_gpus=sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia*")),
        toolkit=_toolkit_version(),
    )


def _toolkit_version() -> str:
    program = shutil.which("nvidia-ctk", path=HOST_BIN)
    if program is None:
        return ""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("version")[2].strip().partition("\n")[0]


def check_disk(facts: ClusterFacts) -> Iterator[Finding]:
    """Check that Docker's data folder has space for a second image and for users."""
    from minicluster_hub.cluster.eviction.rules import reserve_bytes  # Here: the probe does not need it.

    chosen = facts.record.choices.disk_reserve_bytes if facts.record else 0
    for node, report in facts.reporting:
        free, total = report.state.disk_free_bytes, report.state.disk_total_bytes
        reserve = reserve_bytes(chosen, total)
        needed = max(MIN_FREE_BYTES, 2 * facts.image_bytes, 2 * reserve)
        if free >= needed:
            yield ok("disk", node.name, "enough disk for images")
            continue
        words = (
            f"{free / 1e9:.1f} of {total / 1e9:.0f} GB free where Docker keeps images,"
            f" {needed / 1e9:.0f} GB are recommended"
        )
        if free < 2 * reserve:
            when = "it is" if free < reserve else "it will be"
            below = f"below the reserve of {reserve / 1e9:.1f} GB"
            words += f"; jobs and servers that fill it are ended: {when} {below}"
        missing = f"{(needed - free) / 1e9:.0f} GB"
        remedy = f"Free {missing} there: docker system prune, or a larger disk for data-root."
        level = failed if free < max(2 * 10**9, facts.image_bytes // 4, reserve) else warning
        yield level("disk", node.name, words, remedy)


def check_shm(facts: ClusterFacts) -> Iterator[Finding]:
    """Check that containers get more shared memory than Docker's default of 64 MB: data loaders need it."""
    for node, report in facts.reporting:
        found = report.state.shm_bytes
        if found >= SHM_BYTES:
            yield ok("shm", node.name, "shared memory is as large as requested")
        else:
            words = f"a container got {found >> 20} MiB of /dev/shm instead of {SHM_BYTES >> 20}"
            yield failed("shm", node.name, words, "Run its engine as root and without user namespaces.")


def check_gpus(facts: ClusterFacts) -> Iterator[Finding]:
    """Check that the Swarm knows the GPUs, and that the toolkit assigns the GPUs that the Swarm chose."""
    for node, report in facts.reporting:
        if node.gpus:
            yield from _check_gpu_node(node, report.state)
        elif report.state.driver_gpus:
            words = f"has {report.state.driver_gpus} GPUs that the Swarm does not know"
            remedy = f"Set node-generic-resources in its daemon.json ({_GUIDE})."
            yield warning("gpus", node.name, words, remedy)


def _check_gpu_node(node: SwarmNode, state: NodeState) -> Iterator[Finding]:
    from minicluster_hub.cluster.daemon import version_numbers  # Here: the probe does not need it.

    advertised = f"tells the Swarm of {len(node.gpus)} GPUs, and"
    if not state.driver_gpus:
        remedy = "Install the driver, or take them out of its daemon.json."
        yield warning("gpus", node.name, f"{advertised} no NVIDIA driver runs there", remedy)
        return
    if state.driver_gpus != len(node.gpus):
        remedy = f"Correct node-generic-resources in its daemon.json ({_GUIDE})."
        yield failed("gpus", node.name, f"{advertised} its driver knows {state.driver_gpus}", remedy)
    if not state.container_gpus:
        words = "its containers see no GPU: nvidia is not the engine's default runtime"
        remedy = f'Set "default-runtime": "nvidia" in its daemon.json ({_GUIDE}).'
        yield failed("gpus", node.name, words, remedy)
    if not state.toolkit:
        words = "the version of the NVIDIA container toolkit is unknown"
        yield warning("toolkit", node.name, words, "Check there that nvidia-ctk --version is 1.19 or newer.")
    elif version_numbers(state.toolkit) < MIN_TOOLKIT:
        words = f"NVIDIA container toolkit {state.toolkit} ignores which GPU the Swarm gave to a container"
        yield failed("toolkit", node.name, words, "Install nvidia-container-toolkit 1.19 or newer on it.")
    else:
        yield ok("toolkit", node.name, "NVIDIA container toolkit is new enough")


CHECKS = (check_disk, check_shm, check_gpus)
