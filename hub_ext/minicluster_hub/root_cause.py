"""Which of several failed ranks is the one to blame: pure."""

from __future__ import annotations

from collections.abc import Iterable

from minicluster.wire import JobError
from minicluster_hub.models import RankRecord

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
"""What a rank says when another one has gone: a consequence, hardly ever the cause."""


def root_cause(ranks: Iterable[RankRecord]) -> JobError | None:
    """Return the error of the rank that failed first, those of lost connections last."""
    errors = [rank.error for rank in ranks if rank.error is not None]
    return min(errors, key=_blame, default=None)


def _blame(error: JobError) -> tuple[bool, float, int]:
    consequence = any(words in error.message for words in CONNECTION_LOST)
    when = error.at if error.at is not None else float("inf")
    return consequence, when, error.rank if error.rank is not None else 0
