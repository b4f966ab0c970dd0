"""What lists and pages show of jobs' histories, with few queries and never a whole history."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select

from minicluster_hub.jobs.records import EventRecord
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.rows import portions, to_event
from minicluster_hub.store.tables.main import EVENTS, RANKS, TASKS


class HistoryQueries(DatabasePart):
    """Part of the store."""

    def last_event(self, job_id: int) -> EventRecord | None:
        """Return the newest line of a job's history."""
        query = select(EVENTS).where(EVENTS.c.job_id == job_id).order_by(EVENTS.c.id.desc()).limit(1)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else to_event(row)

    def count(self, job_id: int, kind: str) -> int:
        """Return how many lines of a kind a job's history has."""
        query = select(func.count()).where(EVENTS.c.job_id == job_id, EVENTS.c.kind == kind)
        with self._database.read() as connection:
            return connection.execute(query).scalar_one()

    def notes(self, job_id: int, most: int) -> tuple[list[str], int]:
        """Return the first notes of a job's history, and how many there are."""
        notes = (EVENTS.c.job_id == job_id, EVENTS.c.kind == "note")
        first = select(EVENTS.c.text).where(*notes).order_by(EVENTS.c.id).limit(most)
        with self._database.read() as connection:
            texts = list(connection.execute(first).scalars())
            count = connection.execute(select(func.count()).where(*notes)).scalar_one()
        return texts, count

    def nodes(self, attempt_ids: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Return the nodes that attempts ran on, each in the order of its ranks."""
        found: dict[int, dict[str, None]] = {}
        query = select(RANKS.c.attempt_id, TASKS.c.node).join(TASKS, RANKS.c.task_id == TASKS.c.id)
        ordered = query.order_by(RANKS.c.attempt_id, RANKS.c.rank)
        with self._database.read() as connection:
            for some in portions(attempt_ids):
                rows = connection.execute(ordered.where(RANKS.c.attempt_id.in_(some)))
                for attempt_id, node in rows:
                    found.setdefault(attempt_id, {})[node] = None
        return {attempt_id: tuple(nodes) for attempt_id, nodes in found.items()}
