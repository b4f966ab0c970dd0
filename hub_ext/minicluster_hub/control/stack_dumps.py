"""Stacks of the ranks of running jobs, on request, and which ranks are stalled: they make no progress.

In memory only: after a restart the agents report again. A request has an id, which the orders of the job's
tasks contain (`look` on the wire). An agent answers each new id once, in a report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from minicluster.wire import RankStack, TaskReport
from minicluster_hub.support.notifier import Notifier


@dataclass
class StackDumpRequest:
    """One request for the stacks of a job's ranks. waits_for: the tasks that have not answered."""

    id: int
    waits_for: set[int]
    stacks: dict[int, RankStack] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def open(self) -> bool:
        return not self.complete.is_set()


@dataclass
class _StalledRanks:
    """The stalled ranks of one attempt, by the task that reported them."""

    attempt: int
    ranks: dict[int, tuple[int, ...]] = field(default_factory=dict)


class StackDumps:
    """`notifier` notifies a job's id when the job stalls, and when it makes progress again."""

    def __init__(self) -> None:
        self.notifier = Notifier()
        self._requests: dict[int, StackDumpRequest] = {}
        self._stalled: dict[int, _StalledRanks] = {}
        # After a restart of the service, no id may be one that agents have answered.
        self._newest_id = time.time_ns() // 1_000_000

    def newest_id(self, job_id: int) -> int:
        """Return the id of a job's newest request, for its tasks' orders; 0 if there was none."""
        request = self._requests.get(job_id)
        return request.id if request else 0

    def begin(self, job_id: int, tasks: Collection[int]) -> StackDumpRequest:
        """Return the request that is under way, or a new one, which changes the orders of these tasks."""
        request = self._requests.get(job_id)
        if request is None or not request.open:
            self._newest_id += 1
            request = self._requests[job_id] = StackDumpRequest(self._newest_id, set(tasks))
        return request

    def end(self, request: StackDumpRequest) -> None:
        """Close a request that nobody waits for any more: the next caller gets a new one."""
        request.complete.set()

    def is_stalled(self, job_id: int) -> bool:
        """Tell whether some rank of the job makes no progress."""
        stalled = self._stalled.get(job_id)
        return stalled is not None and any(stalled.ranks.values())

    def receive(self, task_id: int, job_id: int, own_ranks: Collection[int], report: TaskReport) -> None:
        """Take a report on the job's newest attempt; ignore what it says of other tasks' ranks."""
        request = self._requests.get(job_id)
        if request and request.open and report.look == request.id and task_id in request.waits_for:
            request.stacks |= {stack.rank: stack for stack in report.stacks if stack.rank in own_ranks}
            request.waits_for.discard(task_id)
            if not request.waits_for:
                request.complete.set()
        before = self.is_stalled(job_id)
        stalled = self._stalled.get(job_id)
        if stalled is None or stalled.attempt != report.attempt:
            stalled = self._stalled[job_id] = _StalledRanks(report.attempt or 0)
        stalled.ranks[task_id] = tuple(rank for rank in report.quiet if rank in own_ranks)
        if self.is_stalled(job_id) != before:
            self.notifier.notify(job_id)

    def keep_only(self, job_ids: Collection[int], task_ids: Collection[int]) -> None:
        """Forget jobs that are over, and tasks that were lost."""
        were_stalled = [job_id for job_id in self._stalled if self.is_stalled(job_id)]
        for job_id in self._stalled.keys() - set(job_ids):
            del self._stalled[job_id]
        for stalled in self._stalled.values():
            for task_id in stalled.ranks.keys() - set(task_ids):
                del stalled.ranks[task_id]
        for job_id in self._requests.keys() - set(job_ids):
            self._requests.pop(job_id).complete.set()
        for job_id in were_stalled:
            if not self.is_stalled(job_id):
                self.notifier.notify(job_id)
