"""The characteristic behaviour of elastic policies, and of gangs for which others move."""

from dataclasses import replace
from math import inf

import pytest

from minicluster_hub.scheduling.allocation.assign import assign
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import Snapshot, Topology
from minicluster_hub.scheduling.placement import placement
from minicluster_hub.scheduling.policies.backfill import Backfill
from minicluster_hub.scheduling.policies.elastic_fifo import ElasticFifo
from minicluster_hub.scheduling.policies.elastic_srtf import ElasticSrtf
from minicluster_hub.scheduling.policies.fair_share import FairShare
from minicluster_hub.scheduling.policies.goodput import Goodput
from minicluster_hub.scheduling.policies.priority import Priority

from ..scheduling.small_lab import LAB, NOW, again_in_s, planned, planned_at, runs, waits


class TestWholeNodes:
    """One slot of each node is taken: a gang that needs a whole node fits if one job moves."""

    alone = tuple(runs(number, 1, since=NOW - 90.0) for number in (1, 2, 3))
    gang = waits(4, 1, slots_per_replica=4)

    def here(self, *jobs):
        """Return a snapshot with one job on each node, and these waiting jobs."""
        spread = [replace(job, places=((f"node-{job.job_id}", (0,)),)) for job in self.alone]
        free = FreeSlots({node: (1, 2, 3) for node in LAB})
        return Snapshot(NOW, (*spread, *jobs), free, Topology(LAB))

    @pytest.mark.parametrize("since", [NOW - 60.0, NOW - 99.0], ids=["came later", "came earlier"])
    @pytest.mark.parametrize("rule", [Priority(), FairShare(), ElasticFifo(), Goodput()])
    def test_one_of_them_moves(self, rule, since):
        gang = replace(self.gang, submitted_at=since, since=since)
        places = assign(self.here(gang), rule, placement("pack")).places
        ((node, slots),) = places[4]
        assert len(slots) == 4
        moved = [number for number in (1, 2, 3) if places[number] != ((f"node-{number}", (0,)),)]
        assert moved == [int(node[-1])]

    def test_nobody_overtakes_it_meanwhile(self):
        assert Priority().plan(self.here(self.gang)).head_blocks
        assert not Priority().plan(self.here(waits(4))).head_blocks

    def test_nobody_moves_if_nobody_may(self):
        assert planned_at(Backfill(), self.here(self.gang)) == {1: 1, 2: 1, 3: 1}
        fixed = [replace(job, not_preemptible_until=inf) for job in self.here().jobs]
        assert planned_at(Priority(), replace(self.here(), jobs=(*fixed, self.gang))) == {1: 1, 2: 1, 3: 1}

    def test_only_for_a_few_gangs_at_a_time(self):
        nodes = {f"node-{number:02}": 2 for number in range(1, 13)}
        jobs = [replace(runs(i, 1), places=((node, (0,)),)) for i, node in enumerate(nodes, 1)]
        gangs = [waits(number, 1, slots_per_replica=2) for number in range(21, 27)]
        here = Snapshot(NOW, (*jobs, *gangs), FreeSlots(dict.fromkeys(nodes, (1,))), Topology(nodes))
        assert [job_id for job_id in planned_at(Priority(), here) if job_id > 20] == [21, 22, 23, 24]

    def test_a_job_on_one_node_is_not_spread_over_two(self):
        held = ((1, "node-1", 2), (2, "node-2", 3), (3, "node-3", 3))
        jobs = [replace(runs(i, size), places=((node, tuple(range(size))),)) for i, node, size in held]
        free = FreeSlots({node: range(size, 4) for _, node, size in held})
        here = Snapshot(NOW, (*jobs, self.gang), free, Topology(LAB))
        assert planned_at(Priority(), here) == {1: 2, 2: 3, 3: 3}

    def test_a_whole_node_is_taken_from_those_who_are_on_it(self):
        """The three jobs with the lowest priority are on three nodes; the next three share the last node."""
        lowest = dict.fromkeys((1, 5, 9), 1) | dict.fromkeys((10, 11, 12), 2)
        jobs = [runs(number, 1, priority=lowest.get(number, 3)) for number in range(1, 13)]
        found = planned(Priority(), *jobs, replace(self.gang, job_id=13, priority=9))
        assert sorted(found) == [*range(1, 9), 13]

    def test_a_job_that_cannot_stand_elsewhere_does_not_move(self):
        two = [
            replace(job, min_replicas=2, max_replicas=2, places=((node, (0, 1)),))
            for job, node in zip(self.here().jobs, LAB, strict=True)
        ]
        here = replace(self.here(), jobs=(*two, self.gang), free=FreeSlots({node: (2, 3) for node in LAB}))
        assert planned_at(Priority(), here) == {1: 2, 2: 2, 3: 2, 4: 1}
        here = replace(here, jobs=(*two, replace(self.gang, min_replicas=2, max_replicas=2)))
        assert planned_at(Priority(), here) == {1: 2, 2: 2, 3: 2}


class TestElasticFifo:
    def test_a_minimum_to_each_in_order_then_one_more_to_each_in_turn(self):
        jobs = [waits(1, 1, most=12), waits(2, 2, most=3), waits(3, 4, most=8)]
        assert planned(ElasticFifo(), *jobs) == {1: 3, 2: 3, 3: 6}

    def test_running_jobs_shrink_to_let_others_start(self):
        jobs = [runs(1, 12, least=1, most=12), waits(2, 1, most=12), waits(3, 1, most=2)]
        assert planned(ElasticFifo(), *jobs) == {1: 5, 2: 5, 3: 2}

    def test_they_grow_when_others_have_ended(self):
        assert planned(ElasticFifo(), runs(1, 3, least=1, most=12)) == {1: 12}

    def test_not_if_they_are_done_before_that_pays(self):
        """The job has 40 s left on three slots; a move costs 30 s, and others have 20 s left."""
        nearly = runs(1, 3, least=1, most=12, remaining_s=1000.0 * 3**0.95 + 40.0 * 3**0.95)
        other = waits(2, 1, most=12)
        assert planned(ElasticFifo(), nearly, other) == {1: 3, 2: 9}

    def test_later_jobs_lose_their_slots_to_an_earlier_one_that_needs_them(self):
        jobs = [waits(1, 10, since=NOW - 9000.0), runs(2, 3), runs(3, 2)]
        assert planned(ElasticFifo(), *jobs) == {1: 10, 3: 2}

    def test_one_that_may_not_be_moved_keeps_what_it_has_and_the_plan_is_made_again_when_it_may(self):
        steady = runs(1, 6, least=1, most=12, not_preemptible_until=NOW + 120.0)
        assert planned(ElasticFifo(), steady, waits(2, 1, most=12)) == {1: 6, 2: 6}
        assert again_in_s(ElasticFifo(), steady) == 120.0

    def test_a_gang_of_whole_nodes_grows_by_whole_nodes(self):
        jobs = [waits(1, 1, most=3, slots_per_replica=4, one_replica_per_node=True), waits(2, 1, most=12)]
        assert planned(ElasticFifo(), *jobs) == {1: 2, 2: 4}
        assert planned(ElasticFifo(), waits(1, 1, most=12, one_replica_per_node=True)) == {1: 3}, (
            "each on a node of its own"
        )

    def test_nobody_starts_before_an_old_one_who_could_delay_it(self):
        old = [runs(1, 8, movable=False, time_limit_s=1600.0), waits(2, 10, since=NOW - 20_000.0)]
        rule = ElasticFifo(age_bound_s=10_000.0)
        assert planned(rule, *old, waits(3, 4, time_limit_s=601.0)) == {1: 8}
        assert planned(rule, *old, waits(3, 4, time_limit_s=600.0)) == {1: 8, 3: 4}


class TestElasticSrtf:
    def test_who_is_done_soonest_gets_in_and_is_first_in_each_turn(self):
        jobs = [waits(1, 6, most=12, remaining_s=900.0), waits(2, 7, most=12, remaining_s=90.0)]
        assert planned(ElasticSrtf(), *jobs) == {2: 12}
        jobs = [waits(1, 5, most=12, remaining_s=900.0), waits(2, 6, most=12, remaining_s=90.0)]
        assert planned(ElasticSrtf(), *jobs) == {2: 7, 1: 5}

    def test_the_plan_is_made_again_when_one_of_unknown_length_seems_longer(self):
        jobs = [runs(1, 12, since=NOW - 15_000.0), waits(2, 12, remaining_s=20_000.0)]
        assert planned(ElasticSrtf(), *jobs) == {1: 12}
        assert again_in_s(ElasticSrtf(), *jobs) == pytest.approx(5000.0)


class TestGoodput:
    good = ((1, 1.0), (2, 2.0), (4, 3.9), (8, 7.5))
    poor = ((1, 1.0), (2, 1.2), (4, 1.25), (8, 1.3))

    def test_slots_go_where_they_were_seen_to_help(self):
        jobs = [waits(1, 1, most=12, rates=self.poor), waits(2, 1, most=12, rates=self.good)]
        found = planned(Goodput(min_gain=0.0), *jobs)
        assert found[2] >= 8 and sum(found.values()) == 12

    def test_but_nobody_is_starved_for_a_little_more(self):
        """Halving one job's speed hurts more than doubling another's helps."""
        jobs = [
            waits(1, 1, most=12, rates=((1, 1.0), (8, 6.8))),
            waits(2, 1, most=12, rates=((1, 1.0), (8, 8.0))),
        ]
        assert min(planned(Goodput(), *jobs).values()) >= 5

    def test_a_gang_grows_by_what_leaves_room_of_a_good_shape_to_others(self):
        jobs = [runs(1, 3, movable=False), waits(2, 1, most=12, rates=self.good)]
        assert planned(Goodput(min_gain=0.0), *jobs)[2] == 8
        lone = waits(3, 1, most=3, rates=self.good)
        assert planned(Goodput(min_gain=0.0), lone) == {3: 2}

    def test_equals_get_equal_parts(self):
        assert planned(Goodput(), *(waits(number, 1, most=12) for number in (1, 2, 3))) == {1: 4, 2: 4, 3: 4}

    def test_slots_that_hardly_help_stay_free(self):
        assert planned(Goodput(), waits(1, 1, most=12, rates=self.poor)) == {1: 2}

    def test_a_job_is_not_moved_for_less_than_the_move_costs(self):
        running = runs(1, 8, least=1, most=12, since=NOW - 1000.0, remaining_s=1000.0 * 8**0.95 + 400.0)
        assert planned(Goodput(), running) == {1: 8}
        assert planned(Goodput(), replace(running, remaining_s=1e6)) == {1: 12}
        assert planned(Goodput(), replace(running, remaining_s=1e6, restart_cost_s=1e6)) == {1: 8}
