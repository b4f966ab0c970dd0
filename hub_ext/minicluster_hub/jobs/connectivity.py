"""Which tasks of an attempt do not reach each other, told by their agents before any rank starts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from minicluster_hub.jobs.records import TaskRecord

Unreached = Mapping[int, Collection[str]]
"""Which addresses a task's agent does not reach, by task."""


def store_address(task: TaskRecord) -> str:
    """Return where a task is reached by the others of its gang: host:port."""
    return f"{task.address}:{task.store_port or 0}"


def apart(tasks: Sequence[TaskRecord], unreached: Unreached) -> tuple[TaskRecord, ...]:
    """Return the tasks without which all others reach each other: first those with the most broken ways.

    Of two that only miss each other, the newer one is it: the older one may have done some of the work.
    """
    by_address = {store_address(task): task for task in tasks}
    broken: set[frozenset[int]] = {
        frozenset((task.id, other.id))
        for task in tasks
        for address in unreached.get(task.id, ())
        if (other := by_address.get(address)) is not None
    }
    parted: list[TaskRecord] = []
    while broken:
        count = Counter(task_id for pair in broken for task_id in pair)
        worst = max((task for task in tasks if task.id in count), key=lambda task: (count[task.id], task.id))
        broken = {pair for pair in broken if worst.id not in pair}
        parted.append(worst)
    return tuple(parted)


def sentence(parted: Sequence[TaskRecord]) -> str:
    """Return what the job's owner is told of tasks that are apart; "" if there are none."""
    if not parted:
        return ""
    nodes = sorted({task.node for task in parted})
    verb = "is" if len(nodes) == 1 else "are"
    return f"{', '.join(nodes)} {verb} not reached by the other nodes on the jobs' network"
