"""What trainings told of their progress: kept in memory, from the records that pass through the service.

After a restart of the service it is taken from the end of each open job's last records; the speeds on other
sizes are seen anew.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from minicluster.wire import JobState, Record
from minicluster_hub.jobs.records import JobRecord, World
from minicluster_hub.scheduling.base import JobView
from minicluster_hub.scheduling.progress_rate import ProgressRate, with_rate

_MARK = b'"whole":'
_MOST_TRIED = 16
"""A stream may hold a hundred thousand lines that only look like records."""
_MOVES = (JobState.YIELDING, JobState.REQUEUING)

Recall = Callable[[int, int], bytes]
"""(job, attempt) -> the end of its records."""


class _Move:
    """A job on its way to other places: since when it makes room, how long that took, when it got places."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.ending_s = 0.0
        self.began_at: float | None = None

    def see(self, job: JobRecord) -> None:
        if job.state is JobState.QUEUED:
            self.ending_s = job.state_since - self.since
        elif job.state is JobState.STARTING:
            self.began_at = job.state_since


class ProgressRates:
    """`recall`: where records are that came before the service began. For the service's one event loop."""

    def __init__(self) -> None:
        self.recall: Recall = lambda _job_id, _attempt: b""
        self._paces: dict[int, ProgressRate] | None = None
        self._moves: dict[int, _Move] = {}

    def show(self, world: World) -> None:
        """Take a new look: jobs that move are followed, those that are over forgotten."""
        if self._paces is None:
            self._paces = {}
            for job in world.jobs:
                self._remember(job)
        for job in world.jobs:
            if job.state in _MOVES and job.id not in self._moves:
                self._moves[job.id] = _Move(job.state_since)
            elif job.id in self._moves:
                self._moves[job.id].see(job)
        if self._paces or self._moves:
            open_jobs = {job.id for job in world.jobs}
            self._paces = {
                job_id: progress_rate for job_id, progress_rate in self._paces.items() if job_id in open_jobs
            }
            self._moves = {job_id: move for job_id, move in self._moves.items() if job_id in open_jobs}

    def hear(self, job_id: int, attempt: int, chunks: int, data: bytes, now: float) -> bool:
        """Take what came of a stream of records; return whether the job ends at another time than it seemed.

        attempt: its number. Lines that are cut are left out: the next one tells the same.
        """
        record = _newest(data)
        if record is None or record.whole is None or self._paces is None:
            return False
        progress_rate = self._paces.setdefault(job_id, ProgressRate())
        move = self._moves.get(job_id)
        if move is not None and move.began_at is not None:
            progress_rate.move_s = move.ending_s + max(0.0, now - move.began_at)
            del self._moves[job_id]
        return progress_rate.hear(record.whole, record.at, now, attempt, chunks)

    def known(self, job: JobView) -> JobView:
        """Return the job with what is known of its pace."""
        progress_rate = (self._paces or {}).get(job.job_id)
        return job if progress_rate is None else with_rate(job, progress_rate)

    def _remember(self, job: JobRecord) -> None:
        """Take what the newest attempt told, if it told something."""
        if not job.attempts or not job.world_size:
            return
        chunks = job.world_size // job.spec.ranks_on_each_node
        lines = self.recall(job.id, job.attempts).splitlines()[1:]
        for line in lines:
            record = _record(line) if _MARK in line else None
            if record is not None:
                self.hear(job.id, job.attempts, chunks, line + b"\n", record.at)


def _newest(data: bytes) -> Record | None:
    """Return the last whole line that tells of all of the training."""
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
