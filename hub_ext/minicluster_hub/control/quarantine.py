"""What fails for one job, kept apart from all others: tried again with pauses, and told who is hopeless.

Kept in memory: another leader tries everything anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from minicluster.wire import ErrorKind, JobError
from minicluster_hub.control.steps import Key, Step
from minicluster_hub.store import NotLeading, Store, StoreFull, StoreUnavailable

MOST_TRIES = 5
"""After so many failures in a row the job is ended; what has no job is set aside."""
LONGEST_PAUSE_S = 300.0


@dataclass(frozen=True, slots=True)
class Failure:
    """What was seen of a step that fails. tries: failures in a row. why: of the last one, for a log."""

    step: Step
    job_id: int | None
    tries: int
    again_at: float
    why: str

    def told(self) -> JobError:
        """Return the error of the job that is ended for it."""
        message = f"the cluster itself failed with this job: {self.step} failed {self.tries} times in a row"
        hint = (
            "It is no error of your code. Tell an admin: the log of the job service has more "
            f"({self.why[:200]}). Then submit the job again."
        )
        return JobError(kind=ErrorKind.LOST, message=message, hint=hint)


class Quarantine:
    """`total`: failures so far, for metrics. retry_s: the pause after a first failure; each doubles it."""

    def __init__(self, store: Store, retry_s: float, clock: Callable[[], float], log: logging.Logger) -> None:
        self.total = 0
        self._store = store
        self._retry_s = retry_s
        self._clock = clock
        self._log = log
        self._failures: dict[Step, Failure] = {}
        self._looked_at = clock()

    def look(self, known: Callable[[], Collection[Key]]) -> None:
        """Begin to act: what is due now may be tried. known: all that there is; the rest is forgotten."""
        self._looked_at = self._clock()
        if self._failures:
            there = known()
            self._failures = {
                step: one for step, one in self._failures.items() if (step.kind, step.id) in there
            }

    @contextmanager
    def isolate(self, step: Step, job_id: int | None = None, *, done: bool = True) -> Iterator[None]:
        """Count what the block raises for this step alone. Raises what concerns everybody.

        done: whether the step has worked when the block ends; else it was only begun.
        What concerns everybody is NotLeading, StoreFull, and StoreUnavailable where nobody answers.
        """
        try:
            yield
        except (NotLeading, StoreFull):
            raise
        except StoreUnavailable as error:
            self._store.ping()  # It answers: what it did not take was this.
            self.failed(step, job_id, error)
        except Exception as error:
            self.failed(step, job_id, error)
        else:
            if done:
                self.worked(step)

    def failed(self, step: Step, job_id: int | None, error: BaseException) -> None:
        """Keep that a step failed. What is tried again too early counts once."""
        if self.waits(step):
            return
        self.total += 1
        before = self._failures.get(step)
        tries = 1 if before is None else before.tries + 1
        why = f"{type(error).__name__}: {error}"
        pause_s = min(LONGEST_PAUSE_S, self._retry_s * 2 ** min(tries - 1, 30))
        self._failures[step] = Failure(step, job_id, tries, self._clock() + pause_s, why)
        news = before is None or before.why != why
        self._log.error(
            "%s failed (%s in a row); trying again in %g s: %s",
            *(step, tries, pause_s, why),
            exc_info=error if news else None,
        )

    def worked(self, step: Step) -> None:
        self._failures.pop(step, None)

    def waits(self, step: Step) -> bool:
        """Whether it failed a moment ago, and is not to be tried yet."""
        failure = self._failures.get(step)
        return failure is not None and self._looked_at < failure.again_at

    def waiting_jobs(self, doing: str) -> frozenset[int]:
        """Return the jobs for which this is not to be tried yet."""
        return frozenset(step.id for step in self._failures if step.doing == doing and self.waits(step))

    def all_worked(self, doing: str) -> None:
        """Forget the failures of steps that were tried again and did not fail."""
        for step in [one for one in self._failures if one.doing == doing and not self.waits(one)]:
            del self._failures[step]

    def hopeless(self) -> tuple[Failure, ...]:
        """Return what failed for jobs so often that they are to be ended."""
        failures = self._failures.values()
        return tuple(one for one in failures if one.job_id is not None and one.tries >= MOST_TRIES)

    def set_aside(self) -> tuple[Failure, ...]:
        """Return what fails though nothing more can be done about it: for administrators."""
        return tuple(one for one in self._failures.values() if one.tries >= MOST_TRIES)

    def next_in_s(self) -> float | None:
        """Return in how many seconds something may be tried that could not be when this tick began."""
        later = [one.again_at for one in self._failures.values() if one.again_at > self._looked_at]
        return max(0.0, min(later) - self._clock()) if later else None
