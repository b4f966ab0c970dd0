"""Looks at the ranks of running jobs, and which ranks are quiet: kept in memory, asked anew when it is lost.

A look is a number in the orders of a job's tasks; agents answer each new number once, in a report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from minicluster.wire import RankStack, TaskReport
from minicluster_hub.support.notifier import Notifier


@dataclass
class Look:
    """One look at a job. waits_for: the tasks that have not answered."""

    number: int
    waits_for: set[int]
    stacks: dict[int, RankStack] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def open(self) -> bool:
        return not self.complete.is_set()

    def take(self, task_id: int, stacks: Collection[RankStack]) -> None:
        self.stacks |= {stack.rank: stack for stack in stacks}
        self.waits_for.discard(task_id)
        if not self.waits_for:
            self.complete.set()


@dataclass
class _Quiet:
    """The quiet ranks of one attempt, by the task that said so."""

    attempt: int
    ranks: dict[int, tuple[int, ...]] = field(default_factory=dict)


class StackDumps:
    """`bell` rings a job's id when it becomes quiet, or is so no more."""

    def __init__(self) -> None:
        self.notifier = Notifier()
        self._looks: dict[int, Look] = {}
        self._quiet: dict[int, _Quiet] = {}
        # Agents must not take the numbers of a restarted service for those that they have answered.
        self._number = time.time_ns() // 1_000_000

    def number(self, job_id: int) -> int:
        """Return the job's newest look, for its tasks' orders; 0 if there was none."""
        look = self._looks.get(job_id)
        return look.number if look else 0

    def begin(self, job_id: int, tasks: Collection[int]) -> Look:
        """Return the look that is under way, or a new one. Its tasks' orders differ from then on."""
        look = self._looks.get(job_id)
        if look is None or not look.open:
            self._number += 1
            look = self._looks[job_id] = Look(self._number, set(tasks))
        return look

    def end(self, look: Look) -> None:
        """Say that nobody waits for it any more: who asks next gets a new one."""
        look.complete.set()

    def is_quiet(self, job_id: int) -> bool:
        """Tell whether some rank of the job makes no progress."""
        known = self._quiet.get(job_id)
        return known is not None and any(known.ranks.values())

    def hear(self, task_id: int, job_id: int, own_ranks: Collection[int], report: TaskReport) -> None:
        """Take what a report on the job's newest attempt says; of other tasks' ranks it says nothing."""
        look = self._looks.get(job_id)
        if look and look.open and report.look == look.number and task_id in look.waits_for:
            look.take(task_id, [stack for stack in report.stacks if stack.rank in own_ranks])
        before = self.is_quiet(job_id)
        known = self._quiet.get(job_id)
        if known is None or known.attempt != report.attempt:
            known = self._quiet[job_id] = _Quiet(report.attempt or 0)
        known.ranks[task_id] = tuple(rank for rank in report.quiet if rank in own_ranks)
        if self.is_quiet(job_id) != before:
            self.notifier.notify(job_id)

    def keep_only(self, job_ids: Collection[int], task_ids: Collection[int]) -> None:
        """Forget jobs that are over, and tasks that were lost."""
        were_quiet = [job_id for job_id in self._quiet if self.is_quiet(job_id)]
        for job_id in self._quiet.keys() - set(job_ids):
            del self._quiet[job_id]
        for known in self._quiet.values():
            for task_id in known.ranks.keys() - set(task_ids):
                del known.ranks[task_id]
        for job_id in self._looks.keys() - set(job_ids):
            self._looks.pop(job_id).complete.set()
        for job_id in were_quiet:
            if not self.is_quiet(job_id):
                self.notifier.notify(job_id)
