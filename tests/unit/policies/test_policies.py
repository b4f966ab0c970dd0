"""The characteristic behaviour of policies with a queue order."""

from dataclasses import replace
from math import inf

import pytest

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.scheduling.allocation.assign import assign
from minicluster_hub.scheduling.placement import placement
from minicluster_hub.scheduling.policies import policy
from minicluster_hub.scheduling.policies.backfill import Backfill
from minicluster_hub.scheduling.policies.fifo import Fifo
from minicluster_hub.scheduling.policies.priority import Priority
from minicluster_hub.scheduling.policies.round_robin import RoundRobin
from minicluster_hub.scheduling.policies.srtf import Srtf
from minicluster_hub.scheduling.policies.time_slice import TimeSlice

from ..scheduling.small_lab import DAY_S, LAB, NOW, again_in_s, planned, runs, snapshot, waits


class TestRoundRobin:
    def test_who_runs_is_first_in_first_out(self):
        jobs = [runs(1, 4), waits(2, 9), waits(3, 1)]
        assert planned(RoundRobin(), *jobs) == planned(Fifo(), *jobs) == {1: 4}

    def test_each_job_starts_on_the_next_node_in_turn(self):
        here = snapshot(*(waits(number) for number in range(1, 7)))
        places = assign(here, policy("round_robin"), placement("round_robin")).places
        nodes = [node for number in range(1, 7) for node, _ in places[number]]
        assert nodes[:3] == nodes[3:] and sorted(nodes[:3]) == sorted(LAB)


class TestBackfill:
    """Job 1 holds 8 of 12 slots for another 600 s; job 2, the head, needs 10."""

    head = (runs(1, 8, time_limit_s=1600.0, movable=False), waits(2, 10))

    def test_who_is_done_before_the_head_can_start_overtakes_it(self):
        assert planned(Backfill(), *self.head, waits(3, 4, time_limit_s=600.0)) == {1: 8, 3: 4}

    def test_who_would_delay_the_head_does_not(self):
        assert planned(Backfill(), *self.head, waits(3, 4, time_limit_s=601.0)) == {1: 8}

    def test_slots_that_the_head_leaves_are_given_away_for_as_long_as_one_likes_but_only_once(self):
        long = {"time_limit_s": 10 * DAY_S}
        jobs = [waits(number, 1, **long) for number in (3, 4, 5)]
        assert planned(Backfill(), *self.head, *jobs) == {1: 8, 3: 1, 4: 1}

    def test_one_that_would_delay_the_head_is_no_hindrance_to_the_next(self):
        jobs = [waits(3, 4, time_limit_s=1e6), waits(4, 2, time_limit_s=1e6)]
        assert planned(Backfill(), *self.head, *jobs) == {1: 8, 4: 2}

    def test_without_a_limit_a_job_is_taken_to_run_for_a_day(self):
        assert planned(Backfill(), *self.head, waits(3, 4)) == {1: 8}
        just_started = runs(1, 8, since=NOW, movable=False)
        assert planned(Backfill(), just_started, waits(2, 10), waits(3, 4)) == {1: 8, 3: 4}

    def test_the_shortest_overtakes_first_unless_that_is_off(self):
        jobs = (*self.head, waits(3, 4, time_limit_s=600.0), waits(4, 4, time_limit_s=500.0))
        assert planned(Backfill(), *jobs) == {1: 8, 4: 4}
        assert planned(Backfill(shortest_first=False), *jobs) == {1: 8, 3: 4}

    def test_the_head_waits_for_notebook_servers_too(self):
        jobs = [waits(2, 12), waits(3, 4, time_limit_s=600.0)]
        server = ServerRecord(1, "eve", "", "node-1", (3,), NOW + 500.0, 0.0)
        here = snapshot(*jobs)
        here.free.remove((("node-1", (3,)),))
        assert not Backfill().plan(replace(here, servers=(server,))).grants
        later = replace(server, until=NOW + 700.0)
        assert [g.job_id for g in Backfill().plan(replace(here, servers=(later,))).grants] == [3]

    def test_a_head_that_can_never_start_holds_up_nobody(self):
        assert planned(Backfill(), self.head[0], waits(2, 13), waits(3, 4)) == {1: 8, 3: 4}

    def test_a_gang_of_whole_nodes_gets_whole_nodes_kept(self):
        """Two slots of each node are free: enough slots, but no node is entirely free before job 1 ends."""
        jobs = [runs(1, 2, time_limit_s=1600.0, movable=False), waits(2, 1, slots_per_replica=4)]
        nodes = {"node-1": 4}
        assert planned(Backfill(), *jobs, waits(3, 2, time_limit_s=900.0), nodes=nodes) == {1: 2}
        assert planned(Backfill(), *jobs, waits(3, 2, time_limit_s=600.0), nodes=nodes) == {1: 2, 3: 2}


class TestPriority:
    def test_the_higher_one_takes_slots_from_the_lowest(self):
        jobs = [runs(1, 6, priority=30), runs(2, 6, priority=20), waits(3, 6, priority=90)]
        assert planned(Priority(), *jobs) == {1: 6, 3: 6}

    def test_not_from_its_equals_nor_from_those_that_may_not_be_moved(self):
        latest = runs(1, 12, priority=50, since=NOW - 10.0)
        assert planned(Priority(), latest, waits(2, 6, priority=50)) == {1: 12}
        assert planned(Priority(), runs(1, 12, priority=1, movable=False), waits(2, 6)) == {1: 12}

    def test_from_no_more_than_it_needs(self):
        jobs = [runs(1, 8, priority=2), runs(2, 4, priority=1)]
        assert planned(Priority(), *jobs, waits(3, 2)) == {1: 8, 3: 2}
        assert planned(Priority(), *jobs, waits(3, 8)) == {2: 4, 3: 8}, "job 2 is spared: job 1 is enough"

    def test_who_comes_behind_does_not_delay_one_that_does_not_fit(self):
        jobs = [runs(1, 8, priority=99, time_limit_s=1600.0), waits(2, 10, priority=80)]
        assert planned(Priority(), *jobs, waits(3, 4, time_limit_s=1e6)) == {1: 8}
        assert planned(Priority(), *jobs, waits(3, 4, time_limit_s=60.0)) == {1: 8, 3: 4}

    def test_slots_are_kept_for_the_first_of_those_that_do_not_fit(self):
        jobs = [
            runs(1, 8, priority=99, time_limit_s=1600.0),
            waits(2, 10, priority=80),
            waits(3, 5, priority=70),
        ]
        assert planned(Priority(), *jobs, waits(4, 4, time_limit_s=1e6)) == {1: 8}

    def test_an_old_one_goes_first_whatever_its_priority(self):
        jobs = [runs(1, 12, priority=99), waits(2, 12, priority=1, since=NOW - DAY_S)]
        assert planned(Priority(), *jobs) == {1: 12}
        assert planned(Priority(age_bound_s=DAY_S), *jobs) == {2: 12}


class TestTimeSlice:
    rule = TimeSlice(quantum_s=1000.0)

    def test_nobody_loses_slots_within_the_quantum(self):
        jobs = [runs(1, 12, since=NOW + 1.0), waits(2, 12)]
        assert planned(self.rule, *jobs, now=NOW + 999.0) == {1: 12}
        assert again_in_s(self.rule, *jobs, now=NOW + 999.0) == 1.0

    def test_at_its_end_those_that_waited_longest_run(self):
        had_theirs = [runs(1, 6, since=NOW - 1000.0), runs(2, 6, since=NOW - 500.0)]
        assert planned(self.rule, *had_theirs, waits(3, 6)) == {3: 6, 2: 6}, "the latest keeps its slots"
        waiting = [
            waits(3, 6, since=NOW - 70.0),
            waits(4, 6, since=NOW - 90.0),
            waits(5, 6, since=NOW - 80.0),
        ]
        assert planned(self.rule, *had_theirs, *waiting) == {4: 6, 5: 6}

    def test_three_gangs_that_fit_one_at_a_time_take_turns(self):
        ran, jobs = [], [waits(1, 12), waits(2, 12), waits(3, 12)]
        for turn in range(6):
            now = NOW + turn * 1000.0
            here = snapshot(*jobs, now=now)
            places = assign(here, self.rule, placement("pack")).places
            ran += places
            jobs = [_moved(job, places.get(job.job_id, ()), now) for job in here.jobs]
        assert ran == [1, 2, 3, 1, 2, 3]

    def test_without_others_nothing_is_asked_again(self):
        assert again_in_s(self.rule, runs(1, 12)) is None


def _moved(job, places, now):
    return job if places == job.places else replace(job, places=places, since=now, not_preemptible_until=0.0)


class TestSrtf:
    def test_the_shorter_one_takes_the_slots(self):
        jobs = [runs(1, 12, remaining_s=10_000.0), waits(2, 12, remaining_s=500.0)]
        assert planned(Srtf(), *jobs) == {2: 12}
        longer = replace(jobs[1], remaining_s=20_000.0)
        assert planned(Srtf(), jobs[0], longer) == {1: 12}
        assert again_in_s(Srtf(age_bound_s=inf), jobs[0], longer) is None, "what is left only grows less"

    def test_what_a_running_job_has_done_counts(self):
        """1,000 of 1,500 s are done: 500 are left, less than the other job's 510."""
        assert planned(Srtf(), runs(1, 12, remaining_s=1500.0), waits(2, 12, remaining_s=510.0)) == {1: 12}

    def test_not_for_less_than_a_restart(self):
        jobs = [runs(1, 12, remaining_s=1510.0), waits(2, 12, remaining_s=500.0, restart_cost_s=30.0)]
        assert planned(Srtf(), *jobs) == {1: 12}

    def test_a_job_of_unknown_length_is_taken_to_last_as_long_again_as_it_ran(self):
        old, short = runs(1, 12, since=NOW - 50_000.0), waits(2, 12, remaining_s=20_000.0)
        assert planned(Srtf(), old, short) == {2: 12}
        young = runs(1, 12, since=NOW - 15_000.0)
        assert planned(Srtf(), young, short) == {1: 12}
        assert again_in_s(Srtf(), young, short) == pytest.approx(5_030.0), (
            "then it has run for so long itself"
        )
        limited = replace(old, time_limit_s=50_100.0)
        assert planned(Srtf(), limited, short) == {1: 12}

    def test_long_jobs_starve_only_if_ageing_is_off(self):
        jobs = [runs(1, 12, remaining_s=2000.0), waits(2, 12, remaining_s=1e6, since=NOW - DAY_S)]
        assert planned(Srtf(age_bound_s=DAY_S), *jobs) == {2: 12}
        assert planned(Srtf(age_bound_s=inf), *jobs) == {1: 12}


class TestAgeing:
    """With SRTF, which would never start long jobs without ageing."""

    rule = Srtf(age_bound_s=10_000.0)

    def test_the_plan_is_made_again_when_a_job_grows_old(self):
        jobs = [runs(1, 12, remaining_s=2000.0), waits(2, 12, remaining_s=1e6, since=NOW - 5000.0)]
        assert planned(self.rule, *jobs) == {1: 12}
        assert again_in_s(self.rule, *jobs) == 3000.0, "at 8/10 of the bound"
        assert planned(self.rule, *jobs, now=NOW + 3000.0) == {1: 12}, "not old until it is more than that"
        assert again_in_s(self.rule, *jobs, now=NOW + 3000.0) == 1.0
        assert planned(self.rule, *jobs, now=NOW + 3001.0) == {2: 12}

    def test_the_oldest_is_first(self):
        old = [waits(1, 12, since=NOW - 30_000.0, remaining_s=90.0), waits(2, 12, since=NOW - 20_000.0)]
        shorter = replace(old[1], remaining_s=80.0)
        assert planned(self.rule, old[0], shorter) == {1: 12}
        assert self.rule.plan(snapshot(*old)).head_blocks, "and nobody overtakes it if it finds no place"

    def test_one_that_was_old_when_it_started_runs_on(self):
        """It waited for 20,000 s, and has then run for 1,000 s."""
        old = runs(1, 12, remaining_s=1e6, submitted_at=NOW - 21_000.0)
        assert planned(self.rule, old, waits(2, 12, remaining_s=10.0)) == {1: 12}

    def test_one_that_ran_most_of_its_time_is_not_old(self):
        had = {"consumed_slot_s": 12 * 95_000.0, "submitted_at": 0.0}
        jobs = [runs(1, 12, remaining_s=2000.0), waits(2, 12, remaining_s=1e6, **had)]
        assert planned(self.rule, *jobs) == {1: 12}

    def test_one_that_may_be_moved_soon_is_not_waited_for_until_its_end(self):
        steady = runs(1, 8, not_preemptible_until=NOW + 600.0, time_limit_s=1e6, remaining_s=1e5)
        old = waits(2, 10, since=NOW - 20_000.0, remaining_s=1e6)
        assert planned(self.rule, steady, old, waits(3, 4, remaining_s=1.0, time_limit_s=601.0)) == {1: 8}
        assert 3 in planned(self.rule, steady, old, waits(3, 4, remaining_s=1.0, time_limit_s=600.0))

    def test_nobody_starts_before_an_old_one_who_could_delay_it(self):
        jobs = [
            runs(1, 8, movable=False, time_limit_s=1600.0, remaining_s=1e5),
            waits(2, 10, since=NOW - 20_000.0, remaining_s=1e6),
        ]
        assert planned(self.rule, *jobs, waits(3, 4, remaining_s=1.0, time_limit_s=601.0)) == {1: 8}
        assert planned(self.rule, *jobs, waits(3, 4, remaining_s=1.0, time_limit_s=600.0)) == {1: 8, 3: 4}

    def test_nor_one_who_would_take_slots_that_the_old_one_will_get(self):
        jobs = [
            runs(1, 8, movable=False, time_limit_s=1600.0, remaining_s=1e5),
            waits(2, 10, since=NOW - 20_000.0, remaining_s=1e6),
            runs(4, 4, remaining_s=1e5),
        ]
        assert planned(self.rule, *jobs, waits(3, 4, remaining_s=1.0, time_limit_s=601.0)) == {1: 8, 4: 4}
        assert planned(self.rule, *jobs, waits(3, 4, remaining_s=1.0, time_limit_s=600.0)) == {1: 8, 3: 4}
