"""What all who watch the lists are sent: read and written once for each change, however many watch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence

from minicluster.wire import Job, NodeList
from minicluster_hub.support.notifier import NODES
from minicluster_hub.jobs.records import JobRecord

MOST_JOBS = 1000
"""So many jobs' texts are kept; each is a line of a list, without traceback and spec."""


class Overview:
    """Texts in JSON, made when the first reader wants them, good until the job or the nodes change again.

    records: reads jobs by their ids. summaries: how lists show them. nodes: all nodes, as they are now.
    """

    def __init__(
        self,
        records: Callable[[Sequence[int]], Sequence[JobRecord]],
        summaries: Callable[[Sequence[JobRecord]], Sequence[Job]],
        nodes: Callable[[], NodeList],
    ) -> None:
        self._records, self._summaries, self._read_nodes = records, summaries, nodes
        self._jobs: dict[int, tuple[str, str]] = {}
        self._nodes: str | None = None

    def hear(self, key: Hashable) -> None:
        """Forget what has changed."""
        if key == NODES:
            self._nodes = None
        elif isinstance(key, int):
            self._jobs.pop(key, None)

    def jobs(self, job_ids: Collection[int], owner: str | None) -> list[str]:
        """Return the texts of those jobs that are there and the owner's (None: anybody's), oldest first."""
        if missing := sorted(one for one in job_ids if one not in self._jobs):
            self._read(missing)
        found = (self._jobs[one] for one in sorted(job_ids) if one in self._jobs)
        return [text for whose, text in found if owner in (None, whose)]

    def _read(self, job_ids: Sequence[int]) -> None:
        if len(self._jobs) + len(job_ids) > MOST_JOBS:
            self._jobs.clear()
        records = self._records(job_ids)
        for record, job in zip(records, self._summaries(records), strict=True):
            self._jobs[record.id] = record.owner, job.model_dump_json()

    def nodes(self) -> str:
        """Return the text of all nodes."""
        if self._nodes is None:
            self._nodes = self._read_nodes().model_dump_json()
        return self._nodes
