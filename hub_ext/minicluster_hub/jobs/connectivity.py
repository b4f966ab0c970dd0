"""Connectivity check: which tasks of an attempt do not reach each other before ranks start. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from minicluster_hub.jobs.records import TaskRecord

Unreached = Mapping[int, Collection[str]]
"""By task, the addresses that its agent cannot reach."""


def store_address(task: TaskRecord) -> str:
    """Return the address at which the other tasks of its gang reach a task: host:port."""
    return f"{task.address}:{task.store_port or 0}"


def unreachable_tasks(tasks: Sequence[TaskRecord], unreached: Unreached) -> tuple[TaskRecord, ...]:
    """Return the tasks to leave out so that all others reach each other; the worst connected come first.

    If two tasks fail to reach only each other, leave out the newer one: the older may have done some work.
    """
    by_address = {store_address(task): task for task in tasks}
    broken: set[frozenset[int]] = {
        frozenset((task.id, other.id))
        for task in tasks
        for address in unreached.get(task.id, ())
        if (other := by_address.get(address)) is not None
    }
    unreachable: list[TaskRecord] = []
    while broken:
        count = Counter(task_id for pair in broken for task_id in pair)
        worst = max((task for task in tasks if task.id in count), key=lambda task: (count[task.id], task.id))
        broken = {pair for pair in broken if worst.id not in pair}
        unreachable.append(worst)
    return tuple(unreachable)


def unreachable_message(unreachable: Sequence[TaskRecord]) -> str:
    """Return the message to the job's owner about unreachable tasks; "" if there are none."""
    if not unreachable:
        return ""
    nodes = sorted({task.node for task in unreachable})
    verb = "is" if len(nodes) == 1 else "are"
    return f"{', '.join(nodes)} {verb} not reached by the other nodes on the jobs' network"
