"""Errors for jobs that did not succeed; the notebook shows them briefly, with lines of the user's cell."""

from __future__ import annotations

from minicluster.errors import MiniclusterError
from minicluster.wire import ErrorKind, Job, JobError, JobState


class DistributedCellError(MiniclusterError):
    """A distributed cell failed. job.error has its traceback, rank and node."""

    def __init__(self, job: Job, log_url: str) -> None:
        self.job = job
        self.log_url = log_url
        self.error = job.error or JobError(
            kind=ErrorKind.LOST, message=f"Job {job.id} ended as {job.state.value} without a reason."
        )
        super().__init__(error_text(self.error), self.error.hint)

    def __str__(self) -> str:
        return "\n".join(self._render_traceback_())

    def _render_traceback_(self) -> list[str]:
        error, what = self.error, f"DistributedCellError: job {self.job.id} failed. {self.message}"
        lines = failure_lines(what, error.traceback, self.hint)
        rank = "" if error.rank is None else f" --rank {error.rank}"
        lines.append(f"Full log: %distribute logs {self.job.id}{rank}   ({self.log_url})")
        return lines


def failure_lines(what: str, traceback: str, hint: str) -> list[str]:
    """Return how a notebook shows an error of a rank. what: the first line."""
    lines = [what]
    if traceback:
        lines.extend(["", *(f"  {line}" for line in traceback.rstrip().splitlines()), ""])
    if hint:
        lines.append(f"Hint: {hint}")
    return lines


class JobStopped(KeyboardInterrupt):
    """A distributed cell was stopped; its log remains available."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def _render_traceback_(self) -> list[str]:
        return [f"Stopped: {self.message}"]


class KernelShutdown(KeyboardInterrupt):
    """The kernel shuts down while a distributed cell runs; the job continues."""

    def __init__(self, job: Job) -> None:
        self.message = f"The kernel ends, job {job.id} continues. Show it again: %distribute attach {job.id}"
        super().__init__(self.message)

    def _render_traceback_(self) -> list[str]:
        return [self.message]


def raise_unless_succeeded(job: Job, log_url: str) -> None:
    """Raise the error of a job that ended without a result."""
    if job.state is JobState.STOPPED:
        ran = "" if job.started_at is not None else " before it started"
        raise JobStopped(f"job {job.id} was stopped{ran}. Its log stays: %distribute logs {job.id}")
    if job.state is not JobState.SUCCEEDED:
        raise DistributedCellError(job, log_url)


def error_text(error: JobError) -> str:
    """Return an error's message, preceded by the rank and node that raised it."""
    return f"{_where(error)}{error.message}"


def _where(error: JobError) -> str:
    if error.rank is None:
        return "" if error.node is None else f"On {error.node}: "
    node = "" if error.node is None else f" on {error.node}"
    # The service's message may name the rank already.
    return "" if error.message.lower().startswith(f"rank {error.rank}") else f"Rank {error.rank}{node}: "
