"""Admission control: refuses a job that this cluster can never run, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from minicluster.wire import CountRange, JobSpec
from minicluster_hub.jobs.records import NodeView
from minicluster_hub.scheduling.base import HIGHEST_PRIORITY, NORMAL_PRIORITY
from minicluster_hub.scheduling.limits import NO_QUOTA, Quota

RESERVED_PREFIXES = (
    "MINICLUSTER_",
    "JUPYTERHUB_",
    "NVIDIA_",
    "DOCKER_RESOURCE_",
    "LD_",
    "TORCHELASTIC_",
    "CUDA_MPS_",
)
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
    """max_ranks: of one job. max_open_jobs: waiting and running jobs of one owner.

    max_priority: of users' jobs; administrators' jobs may have HIGHEST_PRIORITY.
    """

    max_ranks: int = 256
    max_open_jobs: int = 200
    max_env_bytes: int = 32 * 1024
    max_env_variables: int = 256
    max_priority: int = NORMAL_PRIORITY


class JobRefused(Exception):
    """The cluster refuses a job. code: for programs."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Submitter:
    """The user who submits a job. open_jobs: the user's waiting and running jobs."""

    open_jobs: int = 0
    is_admin: bool = False
    quota: Quota = NO_QUOTA


def admit(spec: JobSpec, nodes: Sequence[NodeView], submitter: Submitter, limits: AdmissionLimits) -> JobSpec:
    """Return the spec with its number of nodes and its time limit filled in. Raises JobRefused."""
    quota, open_jobs = submitter.quota, submitter.open_jobs
    asked = None if spec.slots else spec.nodes or _all_nodes(spec, nodes, quota)
    decided = spec.model_copy(update={"nodes": asked, "timeout_s": spec.timeout_s or quota.run_s})
    if decided.gpu_share:
        _check_share(nodes)
    _check_nodes(decided, nodes)
    _check_slots(decided, nodes)
    _check_quota(decided, quota, open_jobs)
    _check_priority(decided, submitter, limits)
    _check_environment(decided, limits)
    ranks = decided.ranks_on_each_node * (decided.replicas.max if decided.replicas else 1)
    if ranks > limits.max_ranks:
        message = f"the job asks for {ranks} ranks; this cluster allows {limits.max_ranks} in one job"
        raise JobRefused("too_many_ranks", message, "Ask for fewer nodes or fewer --ranks-per-node.")
    if open_jobs >= limits.max_open_jobs:
        message = f"you have {open_jobs} jobs waiting or running; this cluster allows {limits.max_open_jobs}"
        raise JobRefused("too_many_jobs", message, "Wait for some to end, or stop some: %distribute status")
    return decided


def _all_nodes(spec: JobSpec, nodes: Sequence[NodeView], quota: Quota) -> CountRange:
    """Return as many nodes as the job can have and its owner's quota allows."""
    fitting = sum(node.up and _fits(node, spec) for node in nodes)
    allowed = inf if quota.slots is None else quota.slots // spec.slots_per_replica
    count = max(1, int(min(fitting, allowed)))
    return CountRange(min=count, max=count)


def _check_quota(spec: JobSpec, quota: Quota, open_jobs: int) -> None:
    """Refuse jobs that would wait for ever, or whose time limit is too long."""
    slots = spec.slots_per_replica * (spec.replicas.min if spec.replicas else 1)
    if quota.slots is not None and slots > quota.slots:
        plural = "" if slots == 1 else "s"
        message = f"the job needs {slots:g} slot{plural}; your quota is {quota.slots:g} at once"
        raise JobRefused("over_quota", message, "Ask for fewer --nodes, or your admin for more.")
    if quota.run_s is not None and (spec.timeout_s or 0.0) > quota.run_s:
        message = f"--timeout is {spec.timeout_s:g} s; your jobs may run for {quota.run_s:g} s"
        raise JobRefused(
            "over_quota", message, "Ask for less time and keep snapshots, or your admin for more."
        )
    if quota.open_jobs is not None and open_jobs >= quota.open_jobs:
        message = f"you have {open_jobs} jobs waiting or running; your quota is {quota.open_jobs:g}"
        raise JobRefused("over_quota", message, "Wait for some to end, or stop some: %distribute status")
    for name, limit in (("jobs", quota.jobs), ("GPU-hours", quota.gpu_hours), ("seconds", quota.run_s)):
        if limit is not None and limit <= 0:
            raise JobRefused(
                "over_quota", f"your quota is 0 {name}: none of your jobs would run", "Ask your admin."
            )


def _check_priority(spec: JobSpec, submitter: Submitter, limits: AdmissionLimits) -> None:
    most = HIGHEST_PRIORITY if submitter.is_admin else limits.max_priority
    if spec.priority > most:
        message = f"--priority is {spec.priority}; your jobs may have up to {most}"
        raise JobRefused("priority_too_high", message, "Ask for less, or an admin to submit it.")


def _check_slots(spec: JobSpec, nodes: Sequence[NodeView]) -> None:
    there = sum(len(node.slot_kinds) for node in nodes)
    if spec.slots is not None and spec.slots.min > there:
        message = f"the job needs {spec.slots.min} slots; this cluster has {there}"
        hint = f"Ask for --gpus {there}. %distribute nodes shows what there is."
        raise JobRefused("too_large", message, hint)


def _fits(node: NodeView, spec: JobSpec) -> bool:
    """Whether a node has room for a replica, if nothing else runs on it."""
    if spec.gpu_share:
        return not node.no_gpu_share
    return len(node.slot_kinds) >= spec.slots_per_node


def _check_share(nodes: Sequence[NodeView]) -> None:
    """Refuse a share of a GPU if no node divides its GPUs; say why."""
    if nodes and all(node.no_gpu_share for node in nodes):
        reasons: dict[str, list[str]] = {}
        for node in nodes:
            reasons.setdefault(node.no_gpu_share, []).append(node.name)
        why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
        hint = "Leave out --gpu-share, or ask your admin whether this cluster may share GPUs."
        raise JobRefused("no_gpu_share", f"no node shares its GPUs ({why})", hint)


def _check_nodes(spec: JobSpec, nodes: Sequence[NodeView]) -> None:
    fitting = [node for node in nodes if _fits(node, spec)]
    if spec.nodes is None or spec.nodes.min <= len(fitting):
        return
    plural = "" if spec.slots_per_node == 1 else "s"
    each = "half a GPU" if spec.gpu_share else f"{spec.slots_per_node} slot{plural}"
    message = (
        f"the job needs {spec.nodes.min} nodes with {each} each; this cluster has {len(fitting)} of them"
    )
    hint = f"Ask for --nodes {len(fitting)}." if fitting else "Ask for fewer --gpus-per-node."
    raise JobRefused("too_large", message, f"{hint} %distribute nodes shows what there is.")


def _check_environment(spec: JobSpec, limits: AdmissionLimits) -> None:
    taken = sorted(name for name in spec.env if name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES))
    if taken:
        message = f"the cluster sets these variables itself: {', '.join(taken)}"
        raise JobRefused("env_reserved", message, "Leave them out of --env.")
    if len(spec.env) > limits.max_env_variables:
        message = f"--env names {len(spec.env)} variables; the limit is {limits.max_env_variables}"
        raise JobRefused("env_too_large", message, "Pass many values as one variable of the notebook.")
    size = sum(len(name) + len(value.encode()) for name, value in spec.env.items())
    if size > limits.max_env_bytes:
        message = f"--env holds {size} bytes; the limit is {limits.max_env_bytes}"
        raise JobRefused("env_too_large", message, "Pass large values as variables of the notebook.")
