"""The error of a failed job: which rank waited for which, from their last stacks."""

from __future__ import annotations

from minicluster.wire import ErrorKind, JobError, RankState
from minicluster_hub.jobs.final_error import final_error
from minicluster_hub.jobs.records import RankRecord

from ... import messages
from .test_why import collective, frame, line, rank

CUT = "RuntimeError: Connection closed by peer [127.0.0.1]:4321"


def failed(stack, message=CUT, kind=ErrorKind.EXCEPTION):
    error = JobError(kind=kind, message=message, rank=stack.rank, hint="Look at its error.", stack=stack)
    return RankRecord(70, stack.rank, 30, RankState.EXITED, 1, error)


def ended(stack):
    return failed(stack, f"Rank {stack.rank} was ended: rank 1 failed.", ErrorKind.SIGNAL)


def through(number):
    return RankRecord(70, number, 30, RankState.EXITED, 0, None)


def asleep(number):
    return rank(number, frame("/usr/lib/python3/site-packages/x.py", "nap"), line(9))


def test_a_rank_that_was_through_early_is_named():
    error = final_error(
        None, [through(0), failed(collective(1, "barrier", 20)), ended(collective(2, "barrier", 20))]
    )
    assert error.message == (
        f"Rank 1 {messages.WAITED_IN_VAIN}: the {messages.CELL_IS_OVER.format(rank=0)} "
        "barrier of cell line 20; ranks 1 and 2 wait there."
    )
    assert messages.SAME_COLLECTIVES in error.hint
    assert (error.rank, error.stack) == (1, None)


def test_a_rank_that_did_not_come_in_time_is_named():
    late = "RuntimeError: Timed out waiting 2000ms for recv operation to complete"
    error = final_error(None, [ended(asleep(0)), failed(collective(1, "barrier", 20), late)])
    assert error.message.startswith(
        f"Rank 1 {messages.WAITED_IN_VAIN}: rank 0 never reached the barrier of cell line 20;"
    )
    assert "Rank 0 is in cell line 9" in error.message


def test_a_rank_that_still_worked_at_the_end_never_came_either():
    late = "RuntimeError: Timed out waiting 2000ms for recv operation to complete"
    at_work = rank(0, line(9), quiet_s=0.4)
    error = final_error(None, [ended(at_work), failed(collective(1, "barrier", 20), late)])
    assert error.message.startswith(
        f"Rank 1 {messages.WAITED_IN_VAIN}: rank 0 never reached the barrier of cell line 20;"
    )


def test_a_time_limit_says_who_waited_for_whom():
    limit = JobError(kind=ErrorKind.TIMEOUT, message="the job ran longer than its time limit of 5 s")
    error = final_error(limit, [ended(asleep(0)), ended(collective(1, "barrier", 20))])
    assert error.message.startswith(f"{limit.message}. At its end: rank 0 never reached the barrier")


def test_a_time_limit_says_what_a_rank_waited_for_after_the_cell():
    limit = JobError(kind=ErrorKind.TIMEOUT, message="the job ran longer than its time limit of 5 s")
    waits = rank(0).model_copy(update={"ending": "its thread loader"})
    error = final_error(limit, [ended(waits)])
    assert error.message.endswith("rank 0 is at the cell's end, waiting for its thread loader.")


def test_a_link_that_broke_between_ranks_that_all_waited_is_told_as_it_was():
    error = final_error(None, [failed(collective(number, "barrier", 20)) for number in (0, 1)])
    assert (error.message, error.hint) == (CUT, "Look at its error.")


def test_an_error_of_the_cell_is_told_as_it_was():
    mistake = failed(rank(0, line(9)), "ValueError: no")
    error = final_error(None, [mistake, ended(collective(1, "barrier", 20))])
    assert error.message == "ValueError: no"


def test_nothing_is_said_where_it_is_not_known_of_all():
    unknown = RankRecord(
        70,
        2,
        30,
        RankState.EXITED,
        -9,
        JobError(kind=ErrorKind.SIGNAL, message="Rank 2 was ended: x", rank=2),
    )
    error = final_error(None, [through(0), failed(collective(1, "barrier", 20)), unknown])
    assert error.message == CUT
