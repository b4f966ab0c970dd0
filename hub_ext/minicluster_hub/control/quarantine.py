"""Keeps failures of one job's operations from other jobs: retries with pauses, then gives the job up.

Failures are in memory only: a new leader tries everything again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from minicluster.wire import ErrorKind, JobError
from minicluster_hub.control.operations import Key, Operation
from minicluster_hub.jobs.records import GangRecord
from minicluster_hub.store import NotLeading, Store, StoreFull, StoreUnavailable

MOST_TRIES = 5
"""After this many failures in a row the job is ended. If the operation has no job, it is only reported."""
LONGEST_PAUSE_S = 300.0


@dataclass(frozen=True, slots=True)
class OperationFailure:
    """An operation that fails. tries: failures in a row. why: the last exception, for a log."""

    operation: Operation
    job_id: int | None
    tries: int
    again_at: float
    why: str

    def job_error(self) -> JobError:
        """Return the error of the job that is given up because of it."""
        message = (
            f"the cluster itself failed with this job: {self.operation} failed {self.tries} times in a row"
        )
        hint = (
            "Your code is not the cause. Tell an admin: the log of the job service has more "
            f"({self.why[:200]}). Then submit the job again."
        )
        return JobError(kind=ErrorKind.LOST, message=message, hint=hint)


class Quarantine:
    """`total`: failures so far, for metrics. retry_s: the pause after a first failure; then it doubles."""

    def __init__(self, store: Store, retry_s: float, clock: Callable[[], float], log: logging.Logger) -> None:
        self.total = 0
        self._store = store
        self._retry_s = retry_s
        self._clock = clock
        self._log = log
        self._failures: dict[Operation, OperationFailure] = {}
        self._began_at = clock()

    def begin_tick(self, existing: Callable[[], Collection[Key]]) -> None:
        """Allow the operations that are due to be tried again, and forget failures of what is gone.

        existing: returns the keys of all objects that exist.
        """
        self._began_at = self._clock()
        if self._failures:
            keys = existing()
            self._failures = {
                one: failed for one, failed in self._failures.items() if (one.kind, one.id) in keys
            }

    def isolate_gang(self, doing: str, gang: GangRecord) -> AbstractContextManager[None]:
        """Count an exception of the block as a failure for this gang; see `isolate`."""
        return self.isolate(Operation(doing, "gang", gang.id), gang.job_id)

    @contextmanager
    def isolate(
        self, operation: Operation, job_id: int | None = None, *, done: bool = True
    ) -> Iterator[None]:
        """Count an exception of the block as a failure of this operation, and do not raise it.

        Raises what concerns all jobs: NotLeading, StoreFull, and StoreUnavailable if the database does not
        answer. done: whether the operation is complete when the block ends; if not, it was only begun.
        """
        try:
            yield
        except (NotLeading, StoreFull):
            raise
        except StoreUnavailable as error:
            self._store.ping()  # If the database answers, it refused only this operation.
            self.failed(operation, job_id, error)
        except Exception as error:
            self.failed(operation, job_id, error)
        else:
            if done:
                self.worked(operation)

    def failed(self, operation: Operation, job_id: int | None, error: BaseException) -> None:
        """Record that an operation failed. During its pause, further failures are not counted."""
        if self.waits(operation):
            return
        self.total += 1
        before = self._failures.get(operation)
        tries = 1 if before is None else before.tries + 1
        why = f"{type(error).__name__}: {error}"
        pause_s = min(LONGEST_PAUSE_S, self._retry_s * 2 ** min(tries - 1, 30))
        self._failures[operation] = OperationFailure(operation, job_id, tries, self._clock() + pause_s, why)
        news = before is None or before.why != why
        self._log.error(
            "%s failed (%s in a row); trying again in %g s: %s",
            *(operation, tries, pause_s, why),
            exc_info=error if news else None,
        )

    def worked(self, operation: Operation) -> None:
        self._failures.pop(operation, None)

    def waits(self, operation: Operation) -> bool:
        """Whether the operation failed a moment ago and must not be tried again yet."""
        failure = self._failures.get(operation)
        return failure is not None and self._began_at < failure.again_at

    def waiting_jobs(self, doing: str) -> frozenset[int]:
        """Return the jobs for which an operation must not be tried again yet."""
        return frozenset(
            operation.id for operation in self._failures if operation.doing == doing and self.waits(operation)
        )

    def all_worked(self, doing: str) -> None:
        """Forget the failures of operations that were tried again and did not fail."""
        for operation in [one for one in self._failures if one.doing == doing and not self.waits(one)]:
            del self._failures[operation]

    def hopeless(self) -> tuple[OperationFailure, ...]:
        """Return the failures that occurred so often that their jobs must be given up."""
        failures = self._failures.values()
        return tuple(one for one in failures if one.job_id is not None and one.tries >= MOST_TRIES)

    def exhausted(self) -> tuple[OperationFailure, ...]:
        """Return all operations that failed too often, with or without a job, for administrators."""
        return tuple(one for one in self._failures.values() if one.tries >= MOST_TRIES)

    def next_in_s(self) -> float | None:
        """Return in how many seconds the next waiting operation may be tried again."""
        later = [one.again_at for one in self._failures.values() if one.again_at > self._began_at]
        return max(0.0, min(later) - self._clock()) if later else None
