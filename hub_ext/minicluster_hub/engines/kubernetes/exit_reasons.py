"""Why a pod ended or cannot start: read from Kubernetes before the pod is removed, as text for users."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

from minicluster_hub.engines.base import readable
from minicluster_hub.engines.kubernetes.api_client.client import KubernetesApi
from minicluster_hub.engines.kubernetes.api_client.paths import Paths
from minicluster_hub.engines.kubernetes.view import PodView

_LINES, _LONGEST = 40, 4000
STUCK_AFTER_S = 20.0
_STUCK = re.compile(
    r"Unschedulable|.*ImagePull.*|ErrImage.*|InvalidImageName|Create.*Error|RunContainerError"
)
"""Reasons of a pod that does not start, which pass seldom. `SchedulingGated` waits for its queue."""

_MEANINGS: tuple[tuple[str, str], ...] = (
    (r"ImagePull|ErrImage|InvalidImageName", "the node could not get the image {image}"),
    (r"OOMKilled", "it took more memory than its limit"),
    (r"Evicted", "the node ended it, since it used too much of the node's disk or memory"),
    (r"Insufficient \S*gpu", "no GPU of the node is free: something outside Minicluster uses it"),
    (
        r"OutOf|Insufficient|UnexpectedAdmissionError",
        "the node has no room: something outside Minicluster uses it",
    ),
    (r"Unschedulable", "Kubernetes does not let pods onto the node"),
    (r"CreateContainerConfigError", "a Secret or a volume that the task needs is not there"),
    (r"DeadlineExceeded", "its time is over"),
)


def exit_reason(pod: PodView) -> str:
    """Return Kubernetes' reason why a pod does not run; a known reason is explained; "" if it has none."""
    reason = " ".join(part for part in (pod.waiting, pod.message) if part)
    for pattern, meaning in _MEANINGS:
        if re.search(pattern, reason):
            return f"{meaning.format(image=pod.image or 'of the task')} ({reason})."
    return reason


class ExitReasons:
    """Fetches the end of each ended task's log once; stores it until `forget`."""

    def __init__(
        self, api: KubernetesApi, paths: Paths, log: logging.Logger, on_change: Callable[[], None]
    ) -> None:
        self._api = api
        self._paths = paths
        self._log = log
        self._on_change = on_change
        self._reasons: dict[str, str] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._stuck_since: dict[str, float] = {}

    def reason(self, pod: PodView, *, node_up: bool) -> str | None:
        """Return why a task ended; None while its log is being fetched: its node has it."""
        if pod.name in self._reasons:
            return self._reasons[pod.name]
        if not (pod.started and node_up):
            return exit_reason(pod)
        if pod.name not in self._fetching:
            self._fetching[pod.name] = asyncio.create_task(self._fetch(pod))
        return None

    def stuck(self, pod: PodView) -> str | None:
        """Return why a task waits for its node for too long; None while it may still start."""
        if not _STUCK.fullmatch(pod.waiting):
            self._stuck_since.pop(pod.name, None)
            return None
        loop = asyncio.get_running_loop()
        if pod.name not in self._stuck_since:
            self._stuck_since[pod.name] = loop.time()
            loop.call_later(STUCK_AFTER_S, self._on_change)
        waited_s = loop.time() - self._stuck_since[pod.name]
        return exit_reason(pod) if waited_s >= STUCK_AFTER_S else None

    def forget(self, pod_name: str) -> None:
        if work := self._fetching.pop(pod_name, None):
            work.cancel()
        self._reasons.pop(pod_name, None)
        self._stuck_since.pop(pod_name, None)

    async def close(self) -> None:
        for work in self._fetching.values():
            work.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)

    async def _fetch(self, pod: PodView) -> None:
        text = await self._api.last_lines(self._paths.pod(pod.name), _LINES, self._log)
        lines = [exit_reason(pod), readable(text)[-_LONGEST:]]
        self._reasons[pod.name] = "\n".join(line for line in lines if line)
        del self._fetching[pod.name]
        self._on_change()
