"""A lab's custom policies: lists them, and talks to the process of one in its sandbox.

The sandboxed process gets snapshots and answers with plans, both in JSON. This module never runs, imports or
unpickles a policy's code.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Self, cast

from minicluster.wire import OfferedPolicy, OptionValue
from minicluster_hub.policy import policy_files
from minicluster_hub.policy.link import LinkLost, is_quiet, receive, send
from minicluster_hub.policy.messages import plan_from_json, snapshot_to_json
from minicluster_hub.policy.sandbox import ProcessSandbox, Sandbox, SandboxConnection
from minicluster_hub.scheduling.base import Plan, Policy, Snapshot
from minicluster_hub.scheduling.own import PolicyFailed, fitted, sound
from minicluster_hub.scheduling.policies import POLICIES

START_S = 10.0
PLAN_S = 1.0
_LOG = logging.getLogger(__name__)
_GRACE_S = 0.5
"""Seconds that a process past its time limit gets to answer with the line where it was interrupted."""
_ANSWER_BYTES = 1 << 20
_ERROR_CHARS = 2000
_PRINTED_CHARS = 64 << 10
"""Most characters of a policy's output after loading that the service logs."""


class PolicyGone(Exception):
    """The policy's process ended between two plans: it must be loaded again."""

    def __init__(self) -> None:
        super().__init__("its process ended between two plans")


@dataclass(frozen=True)
class CustomPolicies:
    """The custom policies of a cluster: files of a folder, and entry points of installed packages.

    sandbox: where they run; None: no custom policies. A custom policy with a built-in one's name is ignored.
    """

    folder: Path | None = None
    sandbox: Sandbox | None = None
    log: logging.Logger = _LOG

    @classmethod
    def in_processes(cls, folder: Path | None = None) -> Self:
        return cls(folder, ProcessSandbox(folder))

    def names(self) -> list[str]:
        return sorted({*self._files(), *self._installed()})

    def offered(self) -> list[OfferedPolicy]:
        """Return the custom policies, without running any of them."""
        found = {name: _of_package(point) for name, point in self._installed().items()}
        if self.folder is not None:
            found |= {name: policy_files.about(self.folder, name) for name in self._files()}
        return [found[name] for name in sorted(found)]

    def policy(self, name: str, options: Mapping[str, OptionValue]) -> CustomPolicy:
        """Return a custom policy, not loaded yet."""
        if self.sandbox is None:
            raise LookupError(name)
        return CustomPolicy(name, options, self.sandbox, self.log)

    def _files(self) -> list[str]:
        if self.sandbox is None or self.folder is None:
            return []
        return [name for name in policy_files.names(self.folder) if name not in POLICIES]

    def _installed(self) -> dict[str, EntryPoint]:
        if self.sandbox is None:
            return {}
        return {
            point.name: point
            for point in entry_points(group=policy_files.ENTRY_POINTS)
            if point.name not in POLICIES
        }


def _of_package(point: EntryPoint) -> OfferedPolicy:
    about = str(point.dist.metadata.json.get("summary", "")) if point.dist else ""
    whose = f"{point.dist.name} {point.dist.version}" if point.dist else ""
    return OfferedPolicy(name=point.name, summary=about or "A policy that was installed.", distribution=whose)


class CustomPolicy:
    """A custom policy in its own process. Call `load` first; call `close` at the end, or its process stays.

    Loading and planning take up to START_S and PLAN_S. `close` from another thread interrupts them.
    """

    def __init__(
        self, name: str, options: Mapping[str, OptionValue], sandbox: Sandbox, log: logging.Logger
    ) -> None:
        self.preemptive = False
        self.elastic = False
        self._load = {"name": name, "options": dict(options)}
        self._sandbox = sandbox
        self._log = log
        self._number = 0
        self._printed = 0
        self._connection: SandboxConnection | None = None
        self._closed = False
        self._asking, self._changing = threading.Lock(), threading.Lock()

    def load(self) -> None:
        """Load the policy in a new process. Raises PolicyFailed, SandboxUnavailable."""
        connection = self._sandbox.connect()
        with self._changing:
            self._connection, closed = connection, self._closed
        if closed:
            connection.close()
        answered = self._ask({"load": self._load}, START_S)
        self.preemptive = bool(answered.get("moves_running"))
        self.elastic = bool(answered.get("elastic"))

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return the policy's plan, checked. Raises PolicyFailed, PolicyGone."""
        if self._connection is None or not is_quiet(self._connection.link):
            raise PolicyGone
        answered = self._ask({"plan": snapshot_to_json(snapshot)}, PLAN_S)
        try:
            return sound(snapshot, plan_from_json(answered))
        except PolicyFailed:
            raise
        except Exception as error:  # it may answer anything
            raise PolicyFailed(f"its answer is no plan ({_short(error)})") from error

    def close(self) -> None:
        """End the process, and everything that it started."""
        with self._changing:
            self._closed, connection = True, self._connection
        if connection is not None:
            connection.stop()
            with self._asking:
                connection.close()

    def _ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Return the answer; end a process that does not answer. Raises PolicyFailed."""
        self._number += 1
        with self._asking:
            answer = self._exchange({**question, "number": self._number, "limit_s": limit_s}, limit_s)
        answered = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
        if "ended" in answered:
            raise PolicyFailed(f"its process ended {_short(answered['ended'])}")
        if answered.get("number") != self._number:
            raise PolicyFailed("its answer is no plan")
        self._log_printed(str(answered.get("printed", "")))
        if "error" in answered:
            raise PolicyFailed(_short(answered["error"]))
        return answered

    def _exchange(self, question: object, limit_s: float) -> Any:
        assert self._connection is not None  # noqa: S101
        link, until = self._connection.link, time.monotonic() + limit_s + _GRACE_S
        try:
            send(link, question, until)
            return receive(link, _ANSWER_BYTES, until)
        except TimeoutError as error:
            self._connection.stop()
            raise PolicyFailed(f"it took longer than {limit_s:g} s") from error
        except ValueError as error:
            self._connection.stop()
            raise PolicyFailed(f"its answer is no plan ({_short(error)})") from error
        except LinkLost as error:
            how = self._connection.close()
            raise PolicyFailed(f"its process ended {how}".rstrip()) from error

    def _log_printed(self, printed: str) -> None:
        left = printed[: max(0, _PRINTED_CHARS - self._printed)]
        self._printed += len(left)
        if left:
            self._log.info("the policy %s prints: %s", self._load["name"], left.rstrip())

    def __del__(self) -> None:
        if not self._closed:
            self.close()


@dataclass(frozen=True, slots=True)
class ReadyPlan:
    """The newest plan of a custom policy; it replaces the policy in one decision."""

    policy: CustomPolicy
    planned: Plan

    @property
    def preemptive(self) -> bool:
        return self.policy.preemptive

    @property
    def elastic(self) -> bool:
        return self.policy.elastic

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return the plan without jobs that are gone. Raises PolicyFailed if it no longer fits."""
        return sound(snapshot, fitted(self.planned, snapshot))

    def holds(self, snapshot: Snapshot) -> bool:
        """Return whether the plan still fits."""
        try:
            self.plan(snapshot)
        except PolicyFailed:
            return False
        return True


def close(policy: Policy | None) -> None:
    """End the process of a policy, if it has one."""
    if isinstance(policy, CustomPolicy):
        policy.close()


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _ERROR_CHARS else f"{text[:_ERROR_CHARS]}..."
