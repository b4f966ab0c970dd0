"""Which of several failed ranks is the root cause. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from minicluster.wire import ErrorKind, JobError
from minicluster_hub.jobs.records import RankRecord

CONNECTION_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "remote process exited",
    "NCCL communicator was aborted",
    "DistNetworkError",
    "DistStoreError",
)
"""Words of a rank's error after another rank has gone: a consequence, hardly ever the cause."""


def root_cause(ranks: Iterable[RankRecord]) -> JobError | None:
    """Return the error of the rank that failed first. Lost connections rank behind it, killed ranks last."""
    return first_error(rank.error for rank in ranks)


def first_error(errors: Iterable[JobError | None]) -> JobError | None:
    """The same, given the errors of the ranks."""
    return min((error for error in errors if error is not None), key=_blame, default=None)


def is_consequence(error: JobError | None) -> bool:
    """Whether an error is about another rank's end, also if the cell wrapped it in another."""
    text = "" if error is None else f"{error.message}\n{error.traceback}"
    return any(words in text for words in CONNECTION_LOST)


def _blame(error: JobError) -> tuple[bool, bool, float, int]:
    when = error.at if error.at is not None else float("inf")
    rank = error.rank if error.rank is not None else 0
    was_ended = error.kind is ErrorKind.SIGNAL and error.message.startswith(f"Rank {rank} was ended: ")
    return was_ended, is_consequence(error), when, rank
