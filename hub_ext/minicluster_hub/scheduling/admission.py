"""What the cluster refuses at the door, with the reason: better now than after an hour of waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minicluster.wire import JobSpec, NodeRange
from minicluster_hub.models import NodeView

RESERVED_PREFIXES = ("MINICLUSTER_", "JUPYTERHUB_", "NVIDIA_", "DOCKER_RESOURCE_", "LD_", "TORCHELASTIC_")
RESERVED_NAMES = frozenset(
    {"PATH", "HOME", "PYTHONSAFEPATH", "PYTHONPATH", "PYTHONHOME", "CUDA_VISIBLE_DEVICES"}
    | {
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
    }
    | {"ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"}
)


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """`max_ranks`: of one job. `max_open_jobs`: of one owner, waiting and running."""

    max_ranks: int = 256
    max_open_jobs: int = 200
    max_env_bytes: int = 32 * 1024


class JobRefused(Exception):
    """A job that this cluster will not take; `code` is for programs."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


def admit(spec: JobSpec, nodes: Sequence[NodeView], open_jobs: int, limits: AdmissionLimits) -> JobSpec:
    """Return the spec with its nodes decided. Raises JobRefused."""
    decided = spec.model_copy(update={"nodes": spec.nodes or _all_nodes(spec, nodes)})
    _check_nodes(decided, nodes)
    _check_environment(decided, limits)
    ranks = decided.ranks_on_each_node * (decided.nodes.max if decided.nodes else 1)
    if ranks > limits.max_ranks:
        message = f"the job asks for {ranks} ranks; this cluster allows {limits.max_ranks} in one job"
        raise JobRefused("too_many_ranks", message, "Ask for fewer nodes or fewer --ranks-per-node.")
    if open_jobs >= limits.max_open_jobs:
        message = f"you have {open_jobs} jobs waiting or running; this cluster allows {limits.max_open_jobs}"
        raise JobRefused("too_many_jobs", message, "Wait for some to end, or stop some: %distribute status")
    return decided


def _all_nodes(spec: JobSpec, nodes: Sequence[NodeView]) -> NodeRange:
    fitting = [node for node in nodes if node.up and len(node.slot_kinds) >= spec.slots_per_node]
    count = max(1, len(fitting))
    return NodeRange(min=count, max=count)


def _check_nodes(spec: JobSpec, nodes: Sequence[NodeView]) -> None:
    fitting = [node for node in nodes if len(node.slot_kinds) >= spec.slots_per_node]
    if spec.nodes is None or spec.nodes.min <= len(fitting):
        return
    plural = "" if spec.slots_per_node == 1 else "s"
    message = (
        f"the job needs {spec.nodes.min} nodes with {spec.slots_per_node} slot{plural} each; "
        f"this cluster has {len(fitting)} of them"
    )
    hint = f"Ask for --nodes {len(fitting)}." if fitting else "Ask for fewer --gpus-per-node."
    raise JobRefused("too_large", message, f"{hint} %distribute nodes shows what there is.")


def _check_environment(spec: JobSpec, limits: AdmissionLimits) -> None:
    taken = sorted(name for name in spec.env if name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES))
    if taken:
        message = f"the cluster sets these variables itself: {', '.join(taken)}"
        raise JobRefused("env_reserved", message, "Leave them out of --env.")
    size = sum(len(name) + len(value) for name, value in spec.env.items())
    if size > limits.max_env_bytes:
        message = f"--env holds {size} bytes; the limit is {limits.max_env_bytes}"
        raise JobRefused("env_too_large", message, "Pass large values as variables of the notebook.")
