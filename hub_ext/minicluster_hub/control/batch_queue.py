"""What the service asks of an engine's batch queue, and how it shows the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil

from minicluster_hub.engines.capabilities import BatchQueue, Place, PlacedGang, QueueAnswer, QueueRequest
from minicluster_hub.jobs.records import StoredState, TaskRecord, TaskState, Wait
from minicluster_hub.scheduling.allocation.free_slots import Places
from minicluster_hub.scheduling.allocation.granted import Need
from minicluster_hub.scheduling.reasons import STARTS_NOW

_UNKNOWN = 0
"""The position of a job in a queue of others."""


def requests(needs: Iterable[Need], stored: StoredState) -> list[QueueRequest]:
    """Return the requests of waiting jobs."""
    attempts = {job.id: job.attempts for job in stored.jobs}
    return [
        QueueRequest(
            job_id=need.job.job_id,
            owner=need.job.owner,
            attempt=attempts[need.job.job_id],
            min_replicas=need.replicas[0],
            max_replicas=need.replicas[1],
            slots_per_replica=ceil(need.job.slots_per_replica),
            one_per_node=need.job.one_replica_per_node,
            without=need.without,
            time_limit_s=need.job.time_limit_s,
        )
        for need in needs
    ]


def placed_gangs(stored: StoredState) -> list[PlacedGang]:
    """Return the gangs that hold slots."""
    attempts = {job.id: job.attempts for job in stored.jobs}
    tasks: dict[int, list[TaskRecord]] = {}
    for task in stored.tasks:
        if task.state is not TaskState.ENDED:
            tasks.setdefault(task.gang_id, []).append(task)
    return [
        PlacedGang(
            gang.id,
            gang.job_id,
            attempts.get(gang.job_id or 0, 1) - 1,
            {task.id: Place(task.node, task.slots) for task in tasks[gang.id]},
        )
        for gang in stored.gangs
        if gang.id in tasks
    ]


def granted_places(answer: QueueAnswer) -> dict[int, Places]:
    return {
        job_id: tuple((place.node, place.slots) for place in places)
        for job_id, places in answer.granted.items()
    }


def lacking_slots(answer: QueueAnswer) -> set[int]:
    """Return the jobs that wait for slots, which warm gangs may hold."""
    return {job_id for job_id, wait in answer.waits.items() if wait.for_slots}


def queue_waits(asked: Iterable[Need], answer: QueueAnswer, queue: BatchQueue) -> Iterator[Wait]:
    """Yield why jobs wait, in the other queue's words."""
    for need in asked:
        job_id = need.job.job_id
        if job_id in answer.granted:
            yield Wait(job_id, _UNKNOWN, STARTS_NOW, None)
        elif found := answer.waits.get(job_id):
            yield Wait(job_id, _UNKNOWN, found.reason, found.expected_start_at)
        else:
            yield Wait(job_id, _UNKNOWN, f"is asked of {queue.name}", None)


def unsubmitted_wait(job_id: int, queue: BatchQueue) -> Wait:
    """Return why a job would wait that is not submitted: only the other queue knows, and only once asked."""
    return Wait(job_id, _UNKNOWN, f"is started by {queue.name}, whose queue decides when", None)
