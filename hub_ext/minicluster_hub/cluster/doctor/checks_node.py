"""Checks of what each node's probe reported of the node itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from minicluster_hub.cluster.daemon import version_numbers
from minicluster_hub.cluster.doctor.facts import ClusterFacts
from minicluster_hub.cluster.doctor.findings import EVERYWHERE, Finding, failed, ok, warning
from minicluster_hub.cluster.doctor.report import Answer, Gpus
from minicluster_hub.cluster.eviction.rules import reserve_bytes
from minicluster_hub.engines.swarm.names import CLUSTER
from minicluster_hub.engines.swarm.view import SwarmNode

MIN_TOOLKIT = (1, 19)
MIN_FREE_BYTES = 20 * 10**9
LOOPBACK = "127.0.0.1"
_GUIDE = "see the administrator's guide, GPU nodes"


def check_gpus(facts: ClusterFacts) -> Iterator[Finding]:
    """GPUs have to be known to the Swarm, and handed out by a toolkit that obeys it."""
    for node, report in facts.reporting:
        gpus = report.gpus
        if not node.gpus:
            if gpus.of_driver:
                words = f"has {gpus.of_driver} GPUs that the Swarm does not know of"
                remedy = f"Set node-generic-resources in its daemon.json ({_GUIDE})."
                yield warning("gpus", node.name, words, remedy)
            continue
        yield from _check_gpu_node(node, gpus)


def _check_gpu_node(node: SwarmNode, gpus: Gpus) -> Iterator[Finding]:
    told = len(node.gpus)
    if not gpus.of_driver:
        words = f"tells the Swarm of {told} GPUs, and no NVIDIA driver runs there"
        yield warning("gpus", node.name, words, "Install the driver, or take them out of its daemon.json.")
        return
    if gpus.of_driver != told:
        words = f"tells the Swarm of {told} GPUs, and its driver knows {gpus.of_driver}"
        yield failed(
            "gpus", node.name, words, f"Correct node-generic-resources in its daemon.json ({_GUIDE})."
        )
    if not gpus.in_container:
        words = "its containers see no GPU: nvidia is not the engine's default runtime"
        yield failed(
            "gpus", node.name, words, f'Set "default-runtime": "nvidia" in its daemon.json ({_GUIDE}).'
        )
    if not gpus.toolkit:
        words = "the version of the NVIDIA container toolkit cannot be found out"
        yield warning("toolkit", node.name, words, "See there that nvidia-ctk --version says 1.19 or newer.")
    elif version_numbers(gpus.toolkit) < MIN_TOOLKIT:
        words = f"NVIDIA container toolkit {gpus.toolkit} ignores which GPU the Swarm gave to a container"
        yield failed("toolkit", node.name, words, "Install nvidia-container-toolkit 1.19 or newer on it.")
    else:
        yield ok("toolkit", node.name, "NVIDIA container toolkit is new enough")


def check_disk(facts: ClusterFacts) -> Iterator[Finding]:
    """Docker's data folder has to take another image beside the one in use, and to leave users room."""
    for node, report in facts.reporting:
        free, total = report.disk_free_bytes, report.disk_total_bytes
        reserve = reserve_bytes(facts.disk_reserve_bytes, total)
        needed = max(MIN_FREE_BYTES, 2 * facts.image_bytes, 2 * reserve)
        if free >= needed:
            yield ok("disk", node.name, "enough disk for images")
            continue
        words = f"{free / 1e9:.1f} of {total / 1e9:.0f} GB free where Docker keeps images"
        remedy = (
            f"Free {(needed - free) / 1e9:.0f} GB there: docker system prune, or a larger disk for data-root."
        )
        words += f", {needed / 1e9:.0f} GB are wanted"
        if free < 2 * reserve:
            when = "it is" if free < reserve else "it will be"
            below = f"below the reserve of {reserve / 1e9:.1f} GB"
            words += f"; jobs and servers that fill it are ended: {when} {below}"
        level = failed if free < max(2 * 10**9, facts.image_bytes // 4, reserve) else warning
        yield level("disk", node.name, words, remedy)


def check_shm(facts: ClusterFacts) -> Iterator[Finding]:
    """Data loaders need more shared memory than Docker's 64 MB; ask for it as jobs do."""
    for node, report in facts.reporting:
        if report.shm_bytes >= facts.shm_bytes:
            yield ok("shm", node.name, "shared memory is as large as asked for")
        else:
            words = (
                f"a container got {report.shm_bytes >> 20} MiB of /dev/shm instead of {facts.shm_bytes >> 20}"
            )
            yield failed("shm", node.name, words, "Run its engine as root and without user namespaces.")


def check_answers(facts: ClusterFacts) -> Iterator[Finding]:
    """The registry, the job service and the hub have to answer to every node."""
    silent = {node.address for node in facts.nodes if node.id in facts.silent}
    stopped = {service.role for service in facts.services if service.running < service.wanted}
    for node, report in facts.reporting:
        for answer in report.answers:
            if answer.door.host in silent or answer.door.what in stopped:
                continue  # The finding about that node or service says it.
            if answer.ok:
                yield ok("reach", node.name, f"{answer.door.group or answer.door.what} answers")
            else:
                words = f"{answer.door.what} ({answer.door.target}) does not answer: {answer.words}"
                yield failed("reach", node.name, words, _remedy(answer))


def check_set_aside(facts: ClusterFacts) -> Iterator[Finding]:
    """The job service ends a job at which it fails again and again; what has no job waits for a person."""
    answers = [answer for _, report in facts.reporting for answer in report.answers]
    if count := max((answer.set_aside for answer in answers), default=0):
        things = f"{count} thing{'s' if count > 1 else ''}"
        words = f"the job service has given up {things} that failed again and again"
        remedy = f"See docker service logs {CLUSTER}_service; a restart of that service tries them anew."
        yield warning("set-aside", EVERYWHERE, words, remedy)


def _remedy(answer: Answer) -> str:
    door, words = answer.door, answer.words.lower()
    if door.host == LOOPBACK and words.startswith("503"):
        return f"See docker service logs {CLUSTER}_{door.what}, and that this node reaches that address."
    if door.host == LOOPBACK:
        return f"The relay does not run there: see docker service ps {CLUSTER}_relay."
    if "refused" in words or words[:1] == "5":
        return f"What should answer at port {door.port} does not run: see docker service ls on a manager."
    return f"Open port {door.port}/tcp of {door.host} to this node in its firewall."
