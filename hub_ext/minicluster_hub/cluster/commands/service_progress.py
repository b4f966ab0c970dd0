"""Finds from Docker's lists whether a service is up, or why not; and waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.errors import ServiceStuck
from minicluster_hub.cluster.plan.plan import MANAGERS
from minicluster_hub.engines.swarm.docker import DockerError
from minicluster_hub.engines.swarm.names import CLUSTER, CLUSTER_LABEL, NAME_LABEL, SPEC_LABEL
from minicluster_hub.engines.swarm.view import SwarmNode, nodes_of

_POLL_S, _START_LIMIT_S, _PULL_LIMIT_S = 0.3, 90.0, 1800.0
_FAILURES = 3
_LOG_LINES = 12
NEXT_STEP = "Run doctor to find the cause. Then give `up` again: it continues."
_REMEDIES = {
    "No such image": "The registry does not have the image: check its name and digest.",
    "port is already allocated": "Another program uses that port: end it, or choose --port.",
    "address already in use": "Another program uses that port: end it, or choose --port.",
    "bind source path does not exist": "The engine's socket has moved since the last `up`: give `up` again.",
    "no suitable node": "The manager is paused or drained: docker node update --availability active.",
    "host-mode port already in use": "Another service uses the same port: choose another with --port.",
    "Pool overlaps": "The engine still has a network of an earlier Swarm: systemctl restart docker.",
}


@dataclass(frozen=True, slots=True)
class ServiceProgress:
    """Counts the nodes on which a service is up.

    reached: the nodes on which it runs, or has done its work. total: the number of nodes that need it.
    trouble: Docker's message about the last failed task. failures: failed tasks that Docker still lists.
    """

    reached: frozenset[str]
    total: int
    trouble: str = ""
    failures: int = 0
    pulling: bool = False

    @property
    def done(self) -> int:
        return len(self.reached)


def progress_of(
    spec: Mapping[str, Any], tasks: Iterable[Mapping[str, Any]], nodes: Sequence[SwarmNode]
) -> ServiceProgress:
    """Return the progress of a service with exactly this specification."""
    wanted = spec["name"], spec["labels"][SPEC_LABEL]
    own = [task for task in tasks if (_labels(task).get(NAME_LABEL), _labels(task).get(SPEC_LABEL)) == wanted]
    once = spec["task_template"]["RestartPolicy"]["Condition"] == "on-failure"
    reached = frozenset(
        str(task["NodeID"])
        for task in own
        if (once and _state(task) == "complete")
        or (not once and _state(task) == task.get("DesiredState") == "running")
    )
    failed = [task for task in own if _state(task) in ("failed", "rejected")]
    last = max(failed, key=lambda task: str(task["Status"].get("Timestamp", "")), default=None)
    # A failure is over once the service runs again on that node or, if one task is enough, anywhere.
    in_trouble = last and last.get("NodeID") not in reached and not (_is_single(spec) and reached)
    return ServiceProgress(
        reached=reached,
        total=_expected(spec, nodes),
        trouble=_message(last) if last and in_trouble else "",
        failures=len(failed),
        pulling=any(_state(task) == "preparing" for task in own),
    )


def _labels(task: Mapping[str, Any]) -> Mapping[str, str]:
    return task["Spec"].get("ContainerSpec", {}).get("Labels") or {}


def _state(task: Mapping[str, Any]) -> str:
    return str(task["Status"]["State"])


def _message(task: Mapping[str, Any]) -> str:
    return str(task["Status"].get("Err") or task["Status"].get("Message") or "")


def _is_single(spec: Mapping[str, Any]) -> bool:
    return "Replicated" in spec["mode"]


def _expected(spec: Mapping[str, Any], nodes: Sequence[SwarmNode]) -> int:
    constraints = spec["task_template"]["Placement"].get("Constraints") or []
    if _is_single(spec) or any(one != MANAGERS for one in constraints):
        return 1
    return sum(node.usable and (node.manager or not constraints) for node in nodes)


def cluster_tasks(daemon: Daemon) -> list[Mapping[str, Any]]:
    """Return all tasks of the cluster."""
    return daemon.call("tasks", filters={"label": f"{CLUSTER_LABEL}={CLUSTER}"})


def wait_for(
    daemon: Daemon, spec: Mapping[str, Any], node_id: str, show: Callable[[str], None]
) -> ServiceProgress:
    """Wait until a service is up on this node or, if one task is enough, on any node; others may follow.

    Raises ServiceStuck with Docker's message and the last lines of the service's log.
    """
    began = time.monotonic()
    failures_before: int | None = None
    while True:
        now = progress_of(spec, cluster_tasks(daemon), nodes_of(daemon.call("nodes")))
        if node_id in now.reached or (_is_single(spec) and now.reached):
            return now
        show(now.trouble or ("its image is being fetched" if now.pulling else "starting"))
        waited_s = time.monotonic() - began
        failures_before = now.failures if failures_before is None else failures_before
        limit_s = _PULL_LIMIT_S if now.pulling else _START_LIMIT_S
        if now.failures - failures_before >= _FAILURES or waited_s > limit_s:
            raise ServiceStuck(stuck_message(spec, now, waited_s, last_lines(daemon, spec["name"])))
        time.sleep(_POLL_S)


def stuck_message(spec: Mapping[str, Any], now: ServiceProgress, waited_s: float, log: str) -> str:
    """Return the message about a service that does not start."""
    why = now.trouble or f"{now.done} of {now.total} tasks run after {waited_s:.0f} s"
    lines = [f"The service {spec['name']} does not start: {why}."]
    lines += [remedy for words, remedy in _REMEDIES.items() if words in now.trouble][:1]
    if log:
        lines += ["Its last lines:", *(f"  {line}" for line in log.splitlines())]
    return "\n".join([*lines, NEXT_STEP])


def last_lines(daemon: Daemon, name: str) -> str:
    """Return the last lines of a service's log; "" if the engine has none."""
    try:
        parts = daemon.once("service_logs", name, stdout=True, stderr=True, tail=_LOG_LINES, is_tty=False)
        return b"".join(parts).decode(errors="replace").strip()
    except (DockerError, OSError):
        return ""
