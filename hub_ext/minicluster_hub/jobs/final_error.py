"""The error shown for a failed job, with which rank waited for which at its end. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from minicluster.wire import ErrorKind, JobError, RankStack, RankState, StackStatus
from minicluster_hub.diagnosis.rank_location import LocationKind, location_of
from minicluster_hub.diagnosis.why import BUSY_S, explain
from minicluster_hub.jobs.records import RankRecord
from minicluster_hub.jobs.root_cause import is_consequence, root_cause

_TIMED_OUT = ("Timed out waiting", "Watchdog caught collective operation timeout", "Socket Timeout")


def final_error(known: JobError | None, ranks: Sequence[RankRecord]) -> JobError | None:
    """Return a job's error. known: the error stored already, None if its ranks have to explain it."""
    error = known or root_cause(ranks)
    if error is None:
        return None
    stacks = [_last(rank) for rank in ranks]
    seen = [stack for stack in stacks if stack is not None]
    if seen and len(seen) == len(ranks) and (error.kind is ErrorKind.TIMEOUT or _tells(error, seen)):
        error = _explained(error, seen)
    return error.model_copy(update={"stack": None})


def _tells(error: JobError, stacks: Sequence[RankStack]) -> bool:
    """Whether the ranks' locations explain more than the error: some waited, and others did not come."""
    places = {location_of(stack) if stack.sight is StackStatus.SEEN else None for stack in stacks}
    waited = any(place is not None and place.kind is LocationKind.RANKS for place in places)
    # A connection can break by itself, but not if its rank had ended.
    return waited and len(places) > 1 and (_timed_out(error) or (is_consequence(error) and None in places))


def _timed_out(error: JobError) -> bool:
    return any(words in f"{error.message}\n{error.traceback}" for words in _TIMED_OUT)


def _last(rank: RankRecord) -> RankStack | None:
    """Return a rank's last known location, None if there is none."""
    error = rank.error
    if error is None:
        ended = rank.state is RankState.EXITED
        return RankStack(rank=rank.rank, sight=StackStatus.ENDED) if ended else None
    if error.stack is None:
        return None
    # A rank that failed because others did not come was waiting, whatever its stack shows.
    no_progress_s = 2 * BUSY_S if is_consequence(error) or _timed_out(error) else error.stack.quiet_s
    return error.stack.model_copy(update={"quiet_s": no_progress_s})


def _explained(error: JobError, stacks: Sequence[RankStack]) -> JobError:
    why = explain(stacks, over=True)
    timed_out = error.kind is ErrorKind.TIMEOUT
    start = f"{error.message}. At its end: " if timed_out else f"Rank {error.rank} waited in vain: "
    message = f"{start}{why.sentence[:1].lower()}{why.sentence[1:]}"
    return error.model_copy(update={"message": message, "hint": why.hint or error.hint})
