"""Stores the scheduler's decisions: which jobs get slots, and which gangs release theirs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from minicluster_hub.control.operations import Operation, Verb
from minicluster_hub.control.quarantine import Quarantine
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.scheduling.allocation.free_slots import Places
from minicluster_hub.scheduling.scheduler import (
    Admit,
    Decision,
    Extend,
    Grow,
    Reclaim,
    Resize,
    Reuse,
    Trim,
)
from minicluster_hub.store import GangTaken, SlotTaken, Store


class Leasing:
    """pause_growth: called with the id of a job that gave up a node."""

    def __init__(
        self,
        store: Store,
        status_cache: StatusCache,
        quarantine: Quarantine,
        pause_growth: Callable[[int], None],
        log: logging.Logger,
    ) -> None:
        self._store = store
        self._status_cache = status_cache
        self._quarantine = quarantine
        self._pause_growth = pause_growth
        self._log = log

    def apply(self, decision: Decision, now: float) -> bool:
        """Store a decision; return whether anything changed. A failure counts against its job alone."""
        kind, number = (
            ("gang", decision.gang_id) if isinstance(decision, (Trim, Reclaim)) else ("job", decision.job_id)
        )
        operation = Operation(Verb.PLACE, kind, number)
        if self._quarantine.waits(operation):
            return False
        with self._quarantine.isolate(operation, number if kind == "job" else None):
            return self._store_decision(decision, now)
        return False

    def _store_decision(self, decision: Decision, now: float) -> bool:
        try:
            match decision:
                case Admit(job_id, places):
                    self._store.admit(job_id, places, now)
                case Reuse(job_id, gang_id):
                    self._store.bind(job_id, gang_id, now)
                case Extend(job_id, gang_id, places):
                    self._store.bind(job_id, gang_id, now, places)
                case Grow(job_id, places):
                    self._store.grow(job_id, places, now)
                case Resize(job_id, places, why):
                    self._resize(job_id, places, why, now)
                case Trim(gang_id, nodes):
                    self._trim(gang_id, nodes, now)
                    return True
                case Reclaim(gang_id):
                    self._store.end_gang(gang_id)
                    return True
        except (SlotTaken, GangTaken) as error:
            self._log.warning("the plan no longer holds: %s", error)
            return False
        self._log.info("job %s: %s", job_id, decision)
        self._status_cache.notify(job_id)
        return True

    def _trim(self, gang_id: int, nodes: Sequence[str], now: float) -> None:
        tasks = self._status_cache.gang_states[gang_id].tasks
        self._store.drop_tasks(gang_id, [task.id for task in tasks if task.node in nodes], now)

    def _resize(self, job_id: int, places: Places, why: str, now: float) -> None:
        """Move a job to other places, or take some away.

        A fault-tolerant job goes on with its remaining tasks. Any other restarts from its snapshot.
        """
        gang_state = next(
            one for one in self._status_cache.gang_states.values() if one.job and one.job.id == job_id
        )
        kept = set(places)
        gone = tuple(task for task in gang_state.tasks if (task.node, task.slots) not in kept)
        if gang_state.tolerates_loss and places and len(gone) == len(gang_state.tasks) - len(places):
            self._store.drop_tasks(gang_state.gang.id, [task.id for task in gone], now)
            nodes = ", ".join(task.node for task in gone)
            self._store.note(job_id, "shrunk", f"without {nodes}: the job {why}", now)
            self._pause_growth(job_id)
        else:
            self._store.apply(job_id, JobEvent.PREEMPTED, now, reason=why, lost_attempts=0)
