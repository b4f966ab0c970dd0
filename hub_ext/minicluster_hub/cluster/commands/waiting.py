"""Whether a service is up, and if not why: pure, from what Docker lists; and the loop that waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.errors import ServiceStuck
from minicluster_hub.cluster.plan.plan import MANAGERS, PLATFORM
from minicluster_hub.engines.swarm.docker import DockerError
from minicluster_hub.engines.swarm.names import CLUSTER, CLUSTER_LABEL, NAME_LABEL, SPEC_LABEL
from minicluster_hub.engines.swarm.view import SwarmNode, nodes_of

_LOOK_S, _PATIENCE_S, _PULL_PATIENCE_S = 0.3, 90.0, 1800.0
_FAILURES = 3
_LOG_LINES = 12


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a service is.

    reached: the nodes on which it runs (or is done). total: of how many. trouble: what Docker says of
    the task that ended last. failures: how many ended of those that Docker still remembers.
    """

    reached: frozenset[str]
    total: int
    trouble: str = ""
    failures: int = 0
    pulling: bool = False

    @property
    def done(self) -> int:
        return len(self.reached)


def standing(
    spec: Mapping[str, Any], tasks: Iterable[Mapping[str, Any]], nodes: Sequence[SwarmNode]
) -> Standing:
    """Return how far the tasks of a service with exactly this specification are."""
    name, digest = spec["name"], spec["labels"][SPEC_LABEL]
    ours = [
        task
        for task in tasks
        if _marks(task).get(NAME_LABEL) == name and _marks(task).get(SPEC_LABEL) == digest
    ]
    once = spec["task_template"]["RestartPolicy"]["Condition"] == "on-failure"
    wanted = "complete" if once else "running"
    reached = frozenset(
        str(task["NodeID"]) for task in ours if _state(task) == wanted and _is_wanted(task, once)
    )
    ended = [task for task in ours if _state(task) in ("failed", "rejected")]
    last = max(ended, key=lambda task: str(task["Status"].get("Timestamp", "")), default=None)
    return Standing(
        reached=reached,
        total=_expected(spec, nodes),
        trouble=_words(last) if last and not _made_up_for(last, spec, reached) else "",
        failures=len(ended),
        pulling=any(_state(task) == "preparing" for task in ours),
    )


def _made_up_for(ended: Mapping[str, Any], spec: Mapping[str, Any], reached: frozenset[str]) -> bool:
    """Tell whether the service runs again where a task ended or, if one is enough, anywhere."""
    return ended.get("NodeID") in reached or ("Replicated" in spec["mode"] and bool(reached))


def _is_wanted(task: Mapping[str, Any], once: bool) -> bool:
    return once or task.get("DesiredState") == "running"


def _marks(task: Mapping[str, Any]) -> Mapping[str, str]:
    return task["Spec"].get("ContainerSpec", {}).get("Labels") or {}


def _state(task: Mapping[str, Any]) -> str:
    return str(task["Status"]["State"])


def _words(task: Mapping[str, Any]) -> str:
    status = task["Status"]
    return str(status.get("Err") or status.get("Message") or "")


def _expected(spec: Mapping[str, Any], nodes: Sequence[SwarmNode]) -> int:
    constraints = spec["task_template"]["Placement"].get("Constraints") or []
    if "Replicated" in spec["mode"] or any(one != MANAGERS for one in constraints):
        return 1
    return sum(node.usable and (node.manager or not constraints) for node in nodes)


def look(daemon: Daemon) -> list[Mapping[str, Any]]:
    """Return all tasks of the cluster by one call."""
    return daemon.call("tasks", filters={"label": f"{CLUSTER_LABEL}={CLUSTER}"})


def wait_for(
    daemon: Daemon, spec: Mapping[str, Any], node_id: str, told: Callable[[Standing], None]
) -> Standing:
    """Wait until a service is up on the manager; other nodes may follow.

    Raises ServiceStuck with Docker's words and the service's last ones.
    """
    began = time.monotonic()
    failures_before: int | None = None
    while True:
        now = standing(spec, look(daemon), nodes_of(daemon.call("nodes")))
        if node_id in now.reached or ("Replicated" in spec["mode"] and now.reached):
            return now
        told(now)
        waited_s = time.monotonic() - began
        failures_before = now.failures if failures_before is None else failures_before
        patience_s = _PULL_PATIENCE_S if now.pulling else _PATIENCE_S
        if now.failures - failures_before >= _FAILURES or waited_s > patience_s:
            raise ServiceStuck(stuck(spec, now, waited_s, last_lines(daemon, spec["name"])))
        time.sleep(_LOOK_S)


def stuck(spec: Mapping[str, Any], now: Standing, waited_s: float, log: str) -> str:
    """Return what to tell of a service that does not come up."""
    name = spec["name"]
    why = now.trouble or f"{now.done} of {now.total} tasks run after {waited_s:.0f} s"
    lines = [f"The service {name} does not come up: {why}.", *_remedy(now.trouble, spec)]
    if log:
        lines += ["Its last lines:", *(f"  {line}" for line in log.splitlines())]
    return "\n".join([*lines, "The command doctor looks further. `up` goes on where it stopped."])


def _remedy(trouble: str, spec: Mapping[str, Any]) -> list[str]:
    known = {
        "No such image": "The image is not there, and its registry did not give it: see its name and digest.",
        "port is already allocated": "Another program listens at that port: end it, or choose --port.",
        "address already in use": "Another program listens at that port: end it, or choose --port.",
        "bind source path does not exist": "The engine's socket is not where it was at the last `up`.",
        "no suitable node": "The manager is paused or drained: docker node update --availability active.",
        "host-mode port already in use": "Another service uses the same port: choose another with --port.",
    }
    return [remedy for words, remedy in known.items() if words in trouble][:1]


def last_lines(daemon: Daemon, name: str) -> str:
    """Return the last lines that a service printed, as far as they can be had."""
    try:
        parts = daemon.once("service_logs", name, stdout=True, stderr=True, tail=_LOG_LINES, is_tty=False)
        return b"".join(parts).decode(errors="replace").strip()
    except (DockerError, OSError):
        return ""


def role_of(task: Mapping[str, Any]) -> str:
    """Return which part of the platform a task is of; "" for others."""
    name = _marks(task).get(NAME_LABEL, "").removeprefix(f"{CLUSTER}_")
    return name if name in PLATFORM else ""
