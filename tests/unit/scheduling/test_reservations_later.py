"""Future reservations: the slots that earlier ones, and jobs that end before, may use."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from minicluster_hub.control.forecast_worker import ForecastWorker
from minicluster_hub.scheduling.allocation.assign import assign
from minicluster_hub.scheduling.base import WarmGang
from minicluster_hub.scheduling.placement import placement
from minicluster_hub.scheduling.policies import POLICIES, policy
from minicluster_hub.scheduling.reservations.enforcement import enforce, until_next_reservation
from minicluster_hub.scheduling.reservations.excluding import excluding
from minicluster_hub.scheduling.reservations.reservation import runs_past
from minicluster_hub.scheduling.reservations.reserved_slots import as_slots
from minicluster_hub.scheduling.scheduler import Admit, Resize, schedule

from ... import messages
from .small_lab import DAY_S, LAB, NOW, runs, waits
from .snapshots_drawn import halves_of, snapshots
from .test_reservations import (
    HOUR_S,
    enforced,
    groups_of,
    reason_of,
    reservations,
    reserved,
    started,
    wait_of,
    window,
)

ALL = tuple(LAB)
NEXT_WEEK = replace(window(begins=7 * DAY_S, ends=8 * DAY_S), nodes=ALL)


def sizes(found):
    return {one.reservation.reservation_id: len(one.slots) for one in found.exclusions.all_reserved}


class TestOthersAtOtherTimes:
    def test_a_window_next_week_leaves_todays_reservation_its_slots(self):
        jobs = waits(1, 9, owner="eve", time_limit_s=HOUR_S), waits(2, 4, owner="ada", time_limit_s=HOUR_S)
        found = enforced([NEXT_WEEK, reserved(4)], *jobs)
        assert sizes(found) == {1: 4, 2: 12}
        assert set(started(found)) == {2} and found.reasons.keys() == {1}

    def test_running_jobs_make_room_for_it_too(self):
        found = enforced([NEXT_WEEK, reserved(4)], runs(1, 12, owner="eve"))
        assert [type(one) for one in found.evictions] == [Resize]

    def test_reservations_of_different_days_may_have_the_same_slots(self):
        tomorrow = reserved(12, begins=DAY_S, ends=2 * DAY_S)
        then = replace(reserved(12, holder="eve", begins=2 * DAY_S, ends=3 * DAY_S), reservation_id=4)
        assert sizes(enforced([tomorrow, then])) == {1: 12, 4: 12}
        sooner = replace(then, begins_at=then.begins_at - 1)
        assert sizes(enforced([tomorrow, sooner])) == {1: 12, 4: 0}

    def test_a_window_that_begins_while_it_lasts_takes_its_slots_then_and_not_now(self):
        reservations = [replace(window(begins=HOUR_S, ends=DAY_S), nodes=ALL), reserved(4, ends=2 * HOUR_S)]
        assert sizes(enforced(reservations)) == {1: 4, 2: 12}
        reservations[1] = replace(reservations[1], begins_at=NOW + HOUR_S)
        assert sizes(enforced(reservations)) == {1: 0, 2: 12}
        of_one = enforced([window(begins=HOUR_S, ends=DAY_S), reserved(8, ends=2 * HOUR_S)])
        assert sizes(of_one) == {1: 8, 2: 4} and "node-1" not in dict(
            of_one.exclusions.all_reserved[1].places
        )

    def test_who_would_run_into_both_is_kept_off_once(self):
        soon = replace(window(begins=HOUR_S, ends=2 * HOUR_S), reservation_id=4)
        jobs = waits(1, 9, owner="eve"), waits(2, 1, owner="eve", time_limit_s=DAY_S)
        found = enforced([NEXT_WEEK, soon], *jobs)
        assert found.reasons.keys() == {1} and "; 3 nodes are in maintenance" in found.reasons[1]
        assert {node for node, _ in started(found)[2]} < set(ALL) - {"node-1"}

    def test_a_holders_job_that_would_run_into_the_next_one_holds_up_no_other(self):
        long, short = waits(1, 4, owner="ada"), waits(2, 4, owner="bob", time_limit_s=HOUR_S)
        found = enforced([NEXT_WEEK, reserved(4)], runs(3, 8, owner="eve", movable=False), long, short)
        assert set(started(found)) == {2} and "maintenance" in found.reasons[1]


class TestForecast:
    WINDOW = replace(window(begins=3 * HOUR_S, ends=9 * HOUR_S), nodes=ALL)

    def test_no_start_after_which_a_job_would_run_into_a_claim(self):
        jobs = runs(1, 12, since=NOW, time_limit_s=2 * HOUR_S), waits(2, 4, time_limit_s=2 * HOUR_S)
        found = enforced(self.WINDOW, *jobs)
        assert found.known_until(found.snapshot.waiting[0]) == NOW + HOUR_S
        assert wait_of(found, 2).expected_start_at is None
        assert wait_of(found, 2, {2: NOW + 2 * HOUR_S}).expected_start_at is None
        assert wait_of(found, 2, {2: NOW + 60}).expected_start_at == NOW + 60
        assert wait_of(enforced([], *jobs), 2).expected_start_at == NOW + 2 * HOUR_S

    def test_none_after_the_next_claim_begins(self):
        jobs = runs(1, 12, since=NOW, time_limit_s=4 * HOUR_S), waits(2, 4, time_limit_s=HOUR_S)
        assert wait_of(enforced(self.WINDOW, *jobs), 2).expected_start_at is None

    def test_ones_own_reservation_is_in_nobodys_way(self):
        mine = reserved(12, begins=3 * HOUR_S, ends=9 * HOUR_S)
        found = enforced(mine, runs(1, 12, owner="eve"), waits(2, 4, owner="ada", time_limit_s=2 * HOUR_S))
        assert found.known_until(found.snapshot.waiting[0]) == NOW + 3 * HOUR_S

    def test_one_that_is_kept_off_a_node_starts_beside_it_until_then(self):
        jobs = runs(1, 12, owner="eve"), waits(2, 4, time_limit_s=4 * HOUR_S)
        found = enforced(window(begins=3 * HOUR_S, ends=9 * HOUR_S), *jobs)
        assert found.known_until(found.snapshot.waiting[0]) == NOW + 3 * HOUR_S


def test_the_forecast_says_no_more_than_is_known():
    jobs = runs(1, 12, since=NOW, time_limit_s=2 * HOUR_S), waits(2, 12, time_limit_s=600.0)
    late = waits(3, 4, since=NOW - 1.0, time_limit_s=2 * HOUR_S)
    found = enforced(TestForecast.WINDOW, *jobs, late)
    policy_manager = SimpleNamespace(active=SimpleNamespace(choice=SimpleNamespace(policy="fifo")))
    worker = ForecastWorker(policy_manager, lambda: None, logging.getLogger(__name__))
    starts, latest = worker._forecast(found, policy("fifo"), placement("pack"))
    assert starts.keys() == latest.keys() == {2}


def then_started(found, rule):
    """Return the jobs that the policy starts, and those that start on slots of future reservations."""
    where = excluding(placement("pack"), found.excluded)
    plan = schedule(found.snapshot, policy(rule), where)
    left = until_next_reservation(found, plan.assignment, elastic=policy(rule).elastic)
    more = schedule(left, policy(rule), where).decisions if left else ()
    return [{one.job_id for one in some if isinstance(one, Admit)} for some in (plan.decisions, more)]


def planned(found):
    return assign(found.snapshot, policy("fifo"), excluding(placement("pack"), found.excluded))


class TestUntilTheNextReservation:
    TOMORROW = reserved(4, begins=DAY_S, ends=2 * DAY_S)
    BUSY = runs(1, 8, owner="eve", movable=False)

    @pytest.mark.parametrize("rule", sorted(POLICIES))
    def test_who_ends_before_does_not_wait_for_one_that_is_kept_off(self, rule):
        short = waits(3, 1, owner="zoe", time_limit_s=HOUR_S)
        first, then = then_started(enforced(self.TOMORROW, self.BUSY, waits(2, 4, owner="eve"), short), rule)
        assert first | then == {3}

    def test_the_order_among_those_stays(self):
        large = waits(3, 6, owner="zoe", time_limit_s=HOUR_S)
        small = waits(4, 1, owner="zoe", time_limit_s=HOUR_S)
        found = enforced(self.TOMORROW, self.BUSY, waits(2, 4, owner="eve"), large, small)
        assert then_started(found, "fifo") == [set(), set()]
        assert messages.AHEAD_OF_IT in reason_of(found, 4)

    def test_what_one_that_is_kept_off_other_slots_may_have_is_left_to_it(self):
        cids = replace(reserved(4, holder="cid", begins=DAY_S, ends=2 * DAY_S), reservation_id=4)
        short = waits(4, 1, owner="zoe", time_limit_s=HOUR_S)
        busy = runs(1, 4, owner="eve", movable=False)
        found = enforced(
            [self.TOMORROW, cids], busy, waits(2, 8, owner="ada"), waits(3, 3, owner="eve"), short
        )
        left = until_next_reservation(found, planned(found), elastic=False)
        assert left is not None and [job.job_id for job in left.waiting] == [4]
        (theirs,) = (one for one in found.exclusions.all_reserved if one.reservation == cids)
        assert left.free.all() == theirs.places

    def test_a_warm_gang_on_them_is_taken_over_by_its_owner(self):
        gang = WarmGang(7, "zoe", (("node-3", (0, 1)),), 1, NOW - 5.0)
        short = waits(3, 2, owner="zoe", time_limit_s=HOUR_S)
        found = enforced(self.TOMORROW, self.BUSY, waits(2, 4, owner="eve"), short, warm=(gang,))
        left = until_next_reservation(found, planned(found), elastic=False)
        assert left is not None and left.warm == (gang,)

    def test_there_is_nothing_where_no_claim_is_to_come_or_nobody_is_kept_off(self):
        short = waits(3, 9, owner="zoe", time_limit_s=HOUR_S)
        for reservation in (self.TOMORROW, reserved(4)):
            found = enforced(reservation, self.BUSY, short)
            assert until_next_reservation(found, planned(found), elastic=False) is None


@settings(deadline=None, max_examples=200)
@given(
    snapshots(5),
    st.lists(reservations, max_size=1),
    st.sampled_from([0, 0, 1]),
    st.sampled_from(sorted(POLICIES)),
)
def test_meanwhile_nobody_gets_what_another_could_have(drawn, some, fewer, rule):
    """One more reservation blocks free slots for the first job of the queue, but not for the last one."""
    free = max(1, int(drawn.obtainable().count) - fewer)
    soon = reserved(free, holder="dan", begins=drawn.now + 900.0 - NOW, ends=drawn.now + 9_000.0 - NOW)
    first, last = waits(90, 1, since=1.0), waits(91, 1, since=9_500.0, time_limit_s=60.0)
    here = replace(drawn, jobs=(first, *drawn.jobs, last))
    found = enforce(here, [*some, soon], groups_of)
    where = excluding(placement("pack"), found.excluded)
    before = assign(found.snapshot, policy(rule), where)
    left = until_next_reservation(found, before, elastic=policy(rule).elastic)
    event("nothing is left" if left is None else "some slots are left")
    if left is None:
        return
    given_out = {half for its in before.places.values() for half in halves_of(its)}
    all_reserved = {slot for one in found.exclusions.all_reserved for slot in one.slots}
    jobs = {job.job_id: job for job in here.jobs}
    waiting = [job for job in found.snapshot.waiting if job.job_id not in before.places]
    kept_off_some = [job for job in waiting if found.exclusions.coming(job)]
    for job_id, its in assign(left, policy(rule), where).places.items():
        new, job = set(as_slots(its)), jobs[job_id]
        if job.runs:
            assert its == job.places
            continue
        assert new <= all_reserved and given_out.isdisjoint(halves_of(its))
        assert all(new <= set(as_slots(found.excluded[other.job_id])) for other in kept_off_some)
        for one in found.exclusions.by_owner[job.owner]:
            assert not new & one.slots or not runs_past(job, one.reservation.begins_at, here.now)
