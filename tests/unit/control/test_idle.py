"""Idle GPUs of notebook servers: a warning first, then reclaimed; only the GPUs' use counts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.scheduling.idle import GpuUse, IdleLimits, Step, next_step, reclaim_at

LIMITS = IdleLimits(warn_s=900.0, reclaim_s=3600.0, held_bytes=1000)
SERVER = ServerRecord(1, "ada", "", "node-1", (0,), until=None, created_at=0.0)
USED_AT = 10_000.0


def step(idle_s, warned_at=None, held_bytes=0, limits=LIMITS, needed=False, **server):
    record = replace(SERVER, warned_at=warned_at, **server)
    return next_step(record, GpuUse(USED_AT, held_bytes), limits, USED_AT + idle_s, needed=needed)


@pytest.mark.parametrize(
    ("idle_s", "warned_after_s", "expected"),
    [
        (0, None, Step.NOTHING),
        (899, None, Step.NOTHING),
        (900, None, Step.WARN),
        (901, 900, Step.NOTHING),
        (3599, 900, Step.NOTHING),
        (3600, 900, Step.RECLAIM),
        (9999, None, Step.WARN),
    ],
)
def test_a_warning_at_15_minutes_and_the_gpus_back_at_60(idle_s, warned_after_s, expected):
    assert step(idle_s, None if warned_after_s is None else USED_AT + warned_after_s) is expected


def test_use_ends_a_warning_and_the_next_one_is_new():
    assert step(0, warned_at=USED_AT - 1) is Step.CALM
    assert step(5000, warned_at=USED_AT - 1) is Step.CALM, "not reclaimed by a warning of before"
    assert step(5000) is Step.WARN


def test_gpus_that_hold_much_stay_until_it_is_freed():
    warned_at = USED_AT + 900
    assert step(9000, warned_at, held_bytes=1001) is Step.NOTHING
    assert step(9000, warned_at, held_bytes=1000) is Step.RECLAIM


def test_what_the_gpus_did_before_the_server_came_is_not_its_own():
    assert step(1000, created_at=USED_AT + 500) is Step.NOTHING
    assert step(1400, created_at=USED_AT + 500) is Step.WARN


def test_without_a_reading_and_after_the_end_nothing_is_done():
    assert next_step(replace(SERVER, warned_at=1.0), None, LIMITS, 1e9) is Step.NOTHING
    assert step(9000, USED_AT + 900, reclaimed_at=USED_AT + 3600) is Step.NOTHING


def test_0_is_never_and_who_is_never_warned_by_time_is_told_before_it_is_taken():
    never = replace(LIMITS, reclaim_s=0.0)
    assert step(1e6, USED_AT + 900, limits=never) is Step.NOTHING
    assert step(900, limits=never) is Step.WARN
    unwarned = replace(LIMITS, warn_s=0.0)
    assert step(3599, limits=unwarned) is Step.NOTHING
    assert step(3600, limits=unwarned) is Step.WARN
    assert step(1e6, limits=replace(never, warn_s=0.0)) is Step.NOTHING


def test_where_the_admin_says_so_a_waiting_job_gets_them_after_the_warning():
    eager = replace(LIMITS, when_needed=True)
    warned_at = USED_AT + 900
    assert step(1200, warned_at, limits=eager) is Step.NOTHING
    assert step(1199, warned_at, limits=eager, needed=True) is Step.NOTHING
    assert step(1200, warned_at, limits=eager, needed=True) is Step.RECLAIM
    assert step(1200, warned_at, needed=True) is Step.NOTHING
    assert step(899, limits=eager, needed=True) is Step.NOTHING


def test_who_was_told_late_has_five_minutes_still():
    assert step(9000, USED_AT + 8701) is Step.NOTHING
    assert step(9000, USED_AT + 8700) is Step.RECLAIM
    warned = replace(SERVER, warned_at=USED_AT + 8000)
    assert reclaim_at(warned, GpuUse(USED_AT, 0), LIMITS) == USED_AT + 8300
    assert reclaim_at(SERVER, GpuUse(USED_AT, 0), LIMITS) == USED_AT + 3600


TIMES = st.floats(0.0, 1e5)


@given(
    used_at=TIMES,
    held=st.integers(0, 2000),
    created_at=TIMES,
    warned_at=st.none() | TIMES,
    warn_s=st.sampled_from([0.0, 900.0]),
    reclaim_s=st.sampled_from([0.0, 600.0, 3600.0]),
    needed=st.booleans(),
    eager=st.booleans(),
    now=TIMES,
)
def test_nobody_loses_gpus_in_use_or_untold(
    used_at, held, created_at, warned_at, warn_s, reclaim_s, needed, eager, now
):
    limits = IdleLimits(warn_s, reclaim_s, 1000, eager)
    record = replace(SERVER, created_at=created_at, warned_at=warned_at)
    found = next_step(record, GpuUse(used_at, held), limits, now, needed=needed)
    idle_s = now - max(used_at, created_at)
    if found is Step.RECLAIM:
        assert warned_at is not None and warned_at >= max(used_at, created_at)
        assert idle_s >= (warn_s if eager and needed and warn_s else reclaim_s) > 0
        assert now - warned_at >= 300
        assert held <= 1000
    if found is Step.WARN:
        assert warned_at is None and idle_s >= min(time_s for time_s in (warn_s, reclaim_s) if time_s)
    if found is Step.CALM:
        assert warned_at is not None
