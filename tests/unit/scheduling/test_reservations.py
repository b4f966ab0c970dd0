"""Reservations, maintenance windows, drained nodes: the slots that they block, under any policy."""

from dataclasses import replace
from itertools import product
from math import inf

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.scheduling.allocation.assign import assign
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import WarmGang
from minicluster_hub.scheduling.placement import PLACEMENTS, placement
from minicluster_hub.scheduling.policies import POLICIES, policy
from minicluster_hub.scheduling.reasons import explain
from minicluster_hub.scheduling.reservations.enforcement import decisions_before_policy, enforce
from minicluster_hub.scheduling.reservations.excluding import excluding
from minicluster_hub.scheduling.reservations.reservation import (
    LAPSE_S,
    ReservationKind,
    ReservationView,
    belongs,
    in_use,
    runs_past,
)
from minicluster_hub.scheduling.reservations.reserved_slots import as_slots
from minicluster_hub.scheduling.scheduler import Admit, Reclaim, Resize, schedule

from ... import messages
from .small_lab import LAB, NOW, runs, snapshot, waits
from .snapshots_drawn import halves_of, snapshots

HOUR_S = 3600.0
GROUPS = {"ada": ("vision",), "bob": ("vision", "speech")}


def groups_of(owner):
    return GROUPS.get(owner, ())


def reserved(slots, *, holder="group:vision", nodes=(), begins=-60.0, ends=HOUR_S, **more):
    return ReservationView(
        1, ReservationKind.RESERVATION, holder, nodes, slots, NOW + begins, NOW + ends, **more
    )


def window(node="node-1", begins=-60.0, ends=HOUR_S, **more):
    return ReservationView(
        2, ReservationKind.MAINTENANCE, "", (node,), None, NOW + begins, NOW + ends, **more
    )


def drained(node="node-1", **more):
    return ReservationView(3, ReservationKind.DRAIN, "", (node,), None, NOW - 60.0, None, **more)


def enforced(reservations, *jobs, **more):
    return enforce(
        snapshot(*jobs, **more), reservations if isinstance(reservations, list) else [reservations], groups_of
    )


def started(found, rule="fifo", placed="pack"):
    """Return the places of the jobs that start, in reservations or by the policy."""
    for decisions in decisions_before_policy(found, placement(placed)):
        if decisions:
            return {one.job_id: one.places for one in decisions if isinstance(one, Admit)}
    where = excluding(placement(placed), found.excluded)
    decisions = schedule(found.snapshot, policy(rule), where).decisions
    return {one.job_id: one.places for one in decisions if isinstance(one, Admit)}


def wait_of(found, job_id, starts=None):
    waits = found.explained(explain(found.shown(), starts or {}), starts or {})
    return next(wait for wait in waits if wait.job_id == job_id)


def reason_of(found, job_id):
    return wait_of(found, job_id).reason


def test_groups_have_members_and_users_are_themselves():
    assert belongs("ada", "group:vision", groups_of) and not belongs("eve", "group:vision", groups_of)
    assert belongs("eve", "eve", groups_of) and not belongs("vision", "group:vision", groups_of)


class TestReservations:
    def test_others_get_what_is_left_and_are_told_for_whom_the_rest_is(self):
        found = enforced(reserved(4, ends=HOUR_S), waits(1, 9, owner="eve"), waits(2, 8, owner="eve"))
        assert found.reasons == {1: f"4 slots are {messages.RESERVED_FOR_GROUP} vision until 04:46 UTC"}
        assert {node for node, _ in started(found)[2]} < set(LAB)

    def test_a_job_that_would_fit_but_for_it_is_told_so(self):
        found = enforced(reserved(4, note="demo"), runs(1, 6, owner="eve"), waits(2, 4, owner="eve"))
        assert started(found) == {}
        why = reason_of(found, 2)
        assert why.startswith(f"4 slots are {messages.RESERVED_FOR_GROUP} vision") and why.endswith(" (demo)")
        assert "are free" in reason_of(
            enforced(reserved(1), runs(1, 9, owner="eve"), waits(2, 4, owner="eve")), 2
        )

    def test_when_a_job_starts_that_waits_for_it_only_the_forecast_tells(self):
        found = enforced(reserved(4), runs(1, 6, owner="eve"), waits(2, 4, owner="eve"))
        assert wait_of(found, 2).expected_start_at is None, "what runs may end before, and does not help"
        assert wait_of(found, 2, {2: NOW + 60}).expected_start_at == NOW + 60

    @pytest.mark.parametrize("owner", ["ada", "bob"])
    def test_its_holders_start_before_the_queue(self, owner):
        queue = waits(1, 12, owner="eve", since=NOW - 9e3), waits(2, 4, owner=owner)
        assert set(started(enforced(reserved(4), *queue))) == {2}
        assert started(enforced([], *queue)).keys() == {1}

    def test_what_its_holders_have_counts(self):
        found = enforced(
            reserved(4), runs(1, 3, owner="ada"), waits(2, 8, owner="eve"), waits(3, 2, owner="bob")
        )
        assert set(started(found)) == {2}
        assert found.inside == (), "one slot is left of the reservation: not enough for job 3"

    def test_a_larger_one_of_its_holders_waits_in_the_queue_like_all(self):
        found = enforced(reserved(2), waits(1, 9, owner="ada"))
        assert found.inside == () and set(started(found)) == {1}

    def test_running_jobs_that_can_be_moved_make_room_the_lowest_and_latest_first(self):
        jobs = runs(1, 6, owner="eve", since=NOW - 3e3), runs(2, 6, owner="eve", since=NOW - 2e3)
        (resize,) = enforced(reserved(4), *jobs).evictions
        assert (resize.job_id, resize.places) == (2, ()) and (
            f"{messages.RESERVED_FOR_GROUP} vision" in resize.why
        )
        lower = replace(jobs[0], priority=10)
        assert enforced(reserved(4), lower, jobs[1]).evictions[0].job_id == 1

    def test_one_that_may_only_shrink_leaves_what_it_can_do_without(self):
        assert enforced(reserved(4), runs(1, 12, owner="eve", only_shrinks=True)).evictions == ()
        (resize,) = enforced(reserved(4), runs(1, 12, least=8, owner="eve", only_shrinks=True)).evictions
        assert sum(len(slots) for _, slots in resize.places) == 8

    def test_others_are_waited_for_and_what_they_free_is_kept(self):
        stays = runs(1, 10, owner="eve", movable=False)
        found = enforced(reserved(4), stays, waits(2, 2, owner="eve"))
        assert not found.evictions and started(found) == {}
        assert "reserved" in reason_of(found, 2)

    def test_it_lapses_when_nobody_comes(self):
        reservation = reserved(4)
        assert reservation.lapses_at() == reservation.begins_at + LAPSE_S
        assert replace(reservation, used=True).lapses_at() is None and drained().lapses_at() is None
        assert not in_use(reservation, snapshot(waits(1, 1, owner="eve")), groups_of)
        assert in_use(reservation, snapshot(waits(1, 1, owner="bob")), groups_of)
        server = ServerRecord(1, "bob", "", "node-3", (0,), None, 0.0)
        assert in_use(reservation, snapshot(servers=(server,)), groups_of)

    def test_a_warm_gang_of_others_ends_only_where_there_is_nothing_else(self):
        gang = WarmGang(7, "eve", (("node-1", (0, 1)),), 2, NOW - 5.0)
        assert enforced(reserved(4), warm=(gang,)).evictions == ()
        (reclaim,) = enforced(reserved(12), warm=(gang,)).evictions
        assert reclaim == Reclaim(7)
        assert enforced(reserved(12), warm=(replace(gang, owner="bob"),)).evictions == ()


class TestBeforeItBegins:
    def test_jobs_that_end_before_may_have_the_slots(self):
        soon = reserved(12, begins=HOUR_S, ends=2 * HOUR_S)
        short = waits(1, 4, owner="eve", time_limit_s=HOUR_S)
        long = waits(2, 4, owner="eve", time_limit_s=HOUR_S + 1)
        found = enforced(soon, short, long, waits(3, 4, owner="eve"))
        assert set(started(found)) == {1}
        reason = f"12 slots are {messages.RESERVED_FOR_GROUP} vision from 04:46 UTC on"
        assert (
            found.reasons[2]
            == found.reasons[3]
            == (f"{reason}; with a --timeout that ends before, it may start")
        )

    def test_jobs_without_a_limit_are_kept_off_as_many_slots_only(self):
        soon = reserved(4, begins=HOUR_S, ends=2 * HOUR_S)
        found = enforced(soon, waits(1, 8, owner="eve"), waits(2, 1, owner="eve"))
        assert set(started(found)) == {1}
        then = enforced(soon, runs(1, 8, owner="eve", movable=False), waits(2, 1, owner="eve"))
        assert started(then) == {} and "from 04:46 UTC on" in reason_of(then, 2)

    def test_slots_that_are_free_by_then_anyway_are_the_ones_that_are_kept(self):
        ends = runs(1, 4, owner="eve", movable=False, since=NOW, time_limit_s=600.0)
        soon = reserved(4, nodes=("node-1",), begins=HOUR_S, ends=2 * HOUR_S)
        assert set(started(enforced(soon, ends, waits(2, 8, owner="eve")))) == {2}

    def test_nobody_is_moved_yet_and_it_is_looked_at_again_then(self):
        found = enforced(reserved(12, begins=HOUR_S, ends=2 * HOUR_S), runs(1, 4, owner="eve"))
        assert not found.evictions and found.again_at == NOW + HOUR_S


class TestNodesThatTakeNothingNew:
    @pytest.mark.parametrize("reservation", [drained(), window()])
    def test_jobs_start_elsewhere(self, reservation):
        found = enforced(reservation, waits(1, 8, owner="eve"), waits(2, 1, owner="ada"))
        assert {node for places in started(found).values() for node, _ in places} == {"node-2", "node-3"}

    def test_who_needs_it_is_told(self):
        found = enforced(drained(note="new memory"), waits(1, 9, owner="eve"))
        assert found.reasons == {1: "node-1 is drained (new memory)"}
        found = enforced(window(ends=HOUR_S), waits(1, 9, owner="eve"))
        assert found.reasons == {1: "node-1 is in maintenance until 04:46 UTC"}

    def test_who_can_never_run_is_not_told_that_it_is_because_of_it(self):
        assert enforced(drained(), waits(1, 13, owner="eve")).reasons == {}

    def test_those_that_can_be_moved_leave_and_others_are_waited_for(self):
        jobs = runs(1, 2, owner="eve"), runs(2, 2, owner="eve", movable=False), runs(3, 2, owner="eve")
        assert [one.job_id for one in enforced(drained(), *jobs).evictions] == [1]

    def test_a_job_keeps_its_tasks_on_other_nodes_if_they_are_enough_for_it(self):
        elastic = runs(1, 8, least=2, owner="eve")
        (resize,) = enforced(drained(), elastic).evictions
        assert resize == Resize(1, (("node-2", (0, 1, 2, 3)),), "makes room: node-1 is drained")

    def test_warm_gangs_on_it_end(self):
        gang = WarmGang(7, "ada", (("node-1", (0,)), ("node-2", (0,))), 1, NOW - 5.0)
        releasing = FreeSlots(dict.fromkeys(LAB, ()))
        found = enforced(drained(), waits(1, 8, owner="eve"), warm=(gang,), releasing=releasing)
        assert found.evictions == (Reclaim(7),) and found.snapshot.warm == ()
        assert found.snapshot.releasing.all() == (("node-2", (0,)),)

    def test_a_notebook_server_does_not_get_its_gpus(self):
        exclusions = enforced([window(begins=HOUR_S, ends=2 * HOUR_S)]).exclusions
        slots, why = exclusions.excluded_from("ada", NOW + 2 * HOUR_S, groups_of)
        assert {node for node, _ in slots} == {"node-1"}
        assert why.startswith("node-1 is in maintenance from 04:46")
        assert exclusions.excluded_from("ada", NOW + 600.0, groups_of) == (frozenset(), "")
        mine = enforced([reserved(4)]).exclusions
        assert mine.excluded_from("ada", inf, groups_of)[0] == frozenset()
        assert len(mine.excluded_from("eve", inf, groups_of)[0]) == 4


reservations = st.builds(
    lambda number, holder, nodes, slots, begins, lasts: ReservationView(
        number,
        ReservationKind.RESERVATION if holder else ReservationKind.DRAIN,
        holder,
        nodes if holder else nodes or ("n0",),
        slots if holder else None,
        10_000.0 + begins,
        10_000.0 + begins + lasts,
    ),
    st.integers(1, 99),
    st.sampled_from(["", "ada", "group:vision", "eve", "eve"]),
    st.sampled_from([(), (), ("n0",), ("n1", "n2"), ("gone",)]),
    st.sampled_from([None, None, 2, 5]),
    st.sampled_from([-500.0, 0.0, 400.0, 400.0, 5_000.0]),
    st.sampled_from([600.0, 50_000.0]),
)


rules = st.lists(st.sampled_from(sorted(product(POLICIES, PLACEMENTS))), min_size=6, max_size=6, unique=True)


@settings(deadline=None, max_examples=120)
@given(snapshots(), st.lists(reservations, min_size=1, max_size=2), rules)
def test_no_policy_and_no_placement_starts_a_job_on_slots_that_are_kept_from_it(
    here, everything_reserved, some
):
    found = enforce(here, everything_reserved, groups_of)
    jobs = {job.job_id: job for job in here.jobs}
    assert jobs.keys() == {job.job_id for job in found.snapshot.jobs} | found.reasons.keys()
    all_reserved = found.exclusions.all_reserved
    due = [one for one in all_reserved if one.reservation.begun(here.now)]
    assert len({slot for one in due for slot in one.slots}) == sum(len(one.slots) for one in due)
    for ordered, placed in some:
        note(f"{ordered} with {placed}")
        where = excluding(placement(placed), found.excluded)
        for snap in (found.snapshot, *found.inside):
            rule = policy(ordered) if snap is found.snapshot else policy("fifo")
            places = assign(snap, rule, where).places
            taken = [half for its in places.values() for half in halves_of(its)]
            assert len(taken) == len(set(taken)), "no slot twice"
            for job_id, its in places.items():
                new = set(as_slots(its)) - set(as_slots(jobs[job_id].places))
                for one in all_reserved:
                    if new & one.slots:
                        reservation, job = one.reservation, jobs[job_id]
                        theirs = bool(reservation.holder) and belongs(
                            job.owner, reservation.holder, groups_of
                        )
                        assert theirs or not (
                            reservation.begun(here.now) or runs_past(job, reservation.begins_at, here.now)
                        )


@settings(deadline=None, max_examples=40)
@given(snapshots(), reservations)
def test_a_reservations_holders_never_start_more_in_it_than_it_has(here, reservation):
    found = enforce(here, [reservation], groups_of)
    for inside in found.inside:
        had = sum(
            len(set(as_slots(job.places)))
            for job in here.running
            if belongs(job.owner, reservation.holder, groups_of)
        )
        places = assign(inside, policy("fifo"), placement("pack")).places
        more = sum(len(list(as_slots(places.get(job.job_id, ())))) for job in inside.waiting)
        everything = sum(
            here.topology.slots.get(node, 0) for node in reservation.nodes or here.topology.slots
        )
        assert more <= (everything if reservation.slots is None else reservation.slots)
        assert reservation.slots is None or reservation.nodes or more <= max(0, reservation.slots - had)
        assert all(belongs(job.owner, reservation.holder, groups_of) for job in inside.waiting)
