"""How fast trainings progress, measured from the records that pass through the service. In memory only.

After a restart of the service, the rates are read from the end of each open job's last records. Rates for
other numbers of replicas are measured again.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from minicluster.wire import JobState, Record
from minicluster_hub.jobs.records import JobRecord, StoredState
from minicluster_hub.scheduling.base import JobView
from minicluster_hub.scheduling.progress_rate import ProgressRate, with_rate

_MARK = b'"whole":'
_MOST_TRIED = 16
"""Most lines that are parsed: a stream may have a hundred thousand lines that only look like records."""
_MOVES = (JobState.YIELDING, JobState.REQUEUING)

Recall = Callable[[int, int], bytes]
"""(job, attempt) -> the end of its records."""


class _Move:
    """A job that moves to other slots. since: when it began to release its own.

    ending_s: how long the release took. began_at: when the job got the new slots.
    """

    def __init__(self, since: float) -> None:
        self.since = since
        self.ending_s = 0.0
        self.began_at: float | None = None

    def update(self, job: JobRecord) -> None:
        if job.state is JobState.QUEUED:
            self.ending_s = job.state_since - self.since
        elif job.state is JobState.STARTING:
            self.began_at = job.state_since


class ProgressRates:
    """`recall` reads records from before the service started. Used in the service's event loop only."""

    def __init__(self, recall: Recall = lambda _job_id, _attempt: b"") -> None:
        self._recall = recall
        self._rates: dict[int, ProgressRate] | None = None
        self._moves: dict[int, _Move] = {}

    def update(self, stored: StoredState) -> None:
        """Take the newest state: follow the jobs that move, and forget those that are over."""
        if self._rates is None:
            self._rates = {}
            for job in stored.jobs:
                self._remember(job)
        for job in stored.jobs:
            if job.state in _MOVES and job.id not in self._moves:
                self._moves[job.id] = _Move(job.state_since)
            elif job.id in self._moves:
                self._moves[job.id].update(job)
        if self._rates or self._moves:
            open_jobs = {job.id for job in stored.jobs}
            self._rates = {job_id: rate for job_id, rate in self._rates.items() if job_id in open_jobs}
            self._moves = {job_id: move for job_id, move in self._moves.items() if job_id in open_jobs}

    def receive(self, job_id: int, attempt: int, replicas: int, data: bytes, now: float) -> bool:
        """Take a piece of a stream of records; return whether the estimate of the job's end changed.

        attempt: its number. Incomplete lines are skipped: the next record has the same information.
        """
        record = _newest(data)
        if record is None or record.whole is None or self._rates is None:
            return False
        rate = self._rates.setdefault(job_id, ProgressRate())
        move = self._moves.get(job_id)
        if move is not None and move.began_at is not None:
            rate.restart_cost_s = move.ending_s + max(0.0, now - move.began_at)
            del self._moves[job_id]
        return rate.receive(record.whole, record.at, now, attempt, replicas)

    def known(self, job: JobView) -> JobView:
        """Add to a job what is known of its progress rate."""
        rate = (self._rates or {}).get(job.job_id)
        return job if rate is None else with_rate(job, rate)

    def _remember(self, job: JobRecord) -> None:
        """Read the records of a job's newest attempt, if there are any."""
        if not job.attempts or not job.world_size:
            return
        replicas = job.world_size // job.spec.ranks_on_each_node
        for line in self._recall(job.id, job.attempts).splitlines()[1:]:
            record = _record(line) if _MARK in line else None
            if record is not None:
                self.receive(job.id, job.attempts, replicas, line + b"\n", record.at)


def _newest(data: bytes) -> Record | None:
    """Return the last complete line that has the progress of the whole training."""
    end = data.rfind(b"\n") + 1
    for _ in range(_MOST_TRIED):
        if (at := data.rfind(_MARK, 0, end)) < 0:
            break
        begin = data.rfind(b"\n", 0, at) + 1
        record = _record(data[begin : data.find(b"\n", at)])
        if record is not None:
            return record
        end = begin
    return None


def _record(line: bytes) -> Record | None:
    try:
        return Record.model_validate_json(line)
    except ValidationError:
        return None
