"""Replays checked by hand: a job's times, the metrics, and that every job ends."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicluster_hub.scheduling.base import Grant, Plan, Topology, Usage
from minicluster_hub.scheduling.decayed_usage import Meter
from minicluster_hub.scheduling.placement import placement
from minicluster_hub.scheduling.policies import POLICIES, policy
from minicluster_hub.simulator.compare import Setting, compare, replay_under, too_large
from minicluster_hub.simulator.metrics import jain, measure, over_runs
from minicluster_hub.simulator.model import Model, power_law
from minicluster_hub.simulator.replay import SimulatedScheduler, SimulationStuck, simulate
from minicluster_hub.simulator.traces.synthetic import Lab, draw
from minicluster_hub.simulator.workload import Shape, TracedJob, workload

from ... import messages

ONE_NODE = Setting(Shape(1, 2))
TWO_NODES = Setting(Shape(2, 2))


def traced(job_id, submitted_at=0.0, duration_s=100.0, slots=1, **more):
    return TracedJob(job_id, more.pop("owner", "ada"), submitted_at, duration_s, slots, **more)


@dataclass(frozen=True)
class NewestFirst:
    """A policy that preempts earlier jobs."""

    preemptive: ClassVar[bool] = True
    elastic: ClassVar[bool] = False

    def plan(self, snapshot):
        newest = max(snapshot.jobs, key=lambda job: job.submit_order)
        return Plan((Grant(newest.job_id, newest.min_replicas),))


@dataclass(frozen=True)
class NotBefore:
    """A policy that starts no job before a given time."""

    preemptive: ClassVar[bool] = False
    elastic: ClassVar[bool] = False
    moment: float = 50.0

    def plan(self, snapshot):
        if snapshot.now < self.moment:
            return Plan((), again_at=self.moment)
        return policy("fifo").plan(snapshot)


@dataclass(frozen=True)
class Grows:
    """A policy that gives the only job all that it can use from a given time on."""

    preemptive: ClassVar[bool] = True
    elastic: ClassVar[bool] = True
    moment: float = 40.0

    def plan(self, snapshot):
        (job,) = snapshot.jobs
        if snapshot.now < self.moment:
            return Plan((Grant(job.job_id, job.min_replicas),), again_at=self.moment)
        return Plan((Grant(job.job_id, job.max_replicas),))


def outcomes(jobs, setting=ONE_NODE, chosen=None, place="pack"):
    replay = replay_under(jobs, chosen or policy("fifo"), place, setting)
    return {outcome.job_id: outcome for outcome in replay.outcomes}


def test_a_job_alone_takes_its_duration():
    (job,) = outcomes([traced(1, submitted_at=7.0)]).values()
    assert (job.started_at, job.ended_at, job.longest_wait_s, job.restarts) == (7.0, 107.0, 0.0, 0)
    assert (job.alone_s, job.held_s, job.slot_s) == (100.0, 100.0, 100.0)


def test_who_finds_no_room_waits_and_that_is_counted():
    ended = outcomes([traced(1, slots=2), traced(2, submitted_at=30.0, duration_s=10.0)])
    assert (ended[2].started_at, ended[2].ended_at, ended[2].longest_wait_s) == (100.0, 110.0, 70.0)


def test_a_preempted_job_loses_no_work_but_pays_for_its_restart():
    jobs = [traced(1, slots=2), traced(2, submitted_at=10.0, duration_s=50.0, slots=2)]
    ended = outcomes(jobs, chosen=NewestFirst())
    assert ended[2].ended_at == 60.0
    assert ended[1].ended_at == 60.0 + 30.0 + 90.0
    assert (ended[1].restarts, ended[1].longest_wait_s, ended[1].held_s) == (1, 50.0, 130.0)


def test_a_job_that_may_not_be_moved_yet_is_not():
    jobs = [traced(1, slots=2), traced(2, submitted_at=10.0, slots=2)]
    ended = outcomes(jobs, Setting(Shape(1, 2), Model(min_run_s=1000.0)), NewestFirst())
    assert ended[1].ended_at == 100.0


def test_the_moment_that_a_plan_names_comes():
    assert outcomes([traced(1)], chosen=NotBefore())[1].started_at == 50.0


def test_more_slots_make_it_faster_by_the_law_that_is_stated():
    model = Model(restart_s=10.0, exponent=1.0)
    (job,) = outcomes([traced(1)], Setting(Shape(1, 2), model), Grows()).values()
    assert job.ended_at == 40.0 + 10.0 + 60.0 / 2
    assert job.slot_s == 40.0 + 2 * 40.0


def test_several_nodes_are_slower_and_send_their_gradients():
    job = traced(1, duration_s=75.0, slots=2, step_s=1.0, gradient_bytes=1000)
    together = outcomes([job], TWO_NODES)[1]
    apart = outcomes([job], TWO_NODES, place="spread")[1]
    assert (together.ended_at, together.crossed_s, together.network_bytes) == (75.0, 0.0, 0.0)
    assert apart.ended_at == pytest.approx(100.0)
    assert (apart.crossed_s, apart.needless_s) == (apart.held_s, apart.held_s)
    assert apart.network_bytes == pytest.approx(75 * 2 * 1000), "two links, each carries the gradient once"


def test_a_gang_that_needs_two_nodes_crosses_them_but_not_needlessly():
    (job,) = outcomes([traced(1, slots=4)], TWO_NODES).values()
    assert (job.ended_at, job.crossed_s, job.needless_s) == (100.0, 100.0, 0.0)


def test_power_law_is_relative_to_what_was_measured():
    speeds = power_law(4, 1, Model(exponent=0.5, cross_node_efficiency=0.8))
    assert speeds.rate(4, 1) == 1.0
    assert speeds.rate(1, 1) == 0.5
    assert speeds.rate(4, 2) == pytest.approx(0.8)
    assert power_law(4, 2, Model(cross_node_efficiency=0.8)).rate(4, 1) == pytest.approx(1.25)


def test_ranges_are_offered_to_elastic_policies_only():
    jobs = [traced(1, slots=2), traced(2, slots=8)]
    shape, model = Shape(3, 4), Model()
    rigid = workload(jobs, shape, model, elastic=False)
    assert [(work.view.min_replicas, work.view.max_replicas) for work in rigid] == [(2, 2), (8, 8)]
    ranges = workload(jobs, shape, model, elastic=True)
    assert [(work.view.min_replicas, work.view.max_replicas) for work in ranges] == [(1, 4), (2, 12)]
    assert ranges[0].view.remaining_s == pytest.approx(100.0 * 2**0.95)


def test_what_the_cluster_cannot_run_is_left_out_and_counted():
    jobs = [traced(1), traced(2, slots=3)]
    assert set(outcomes(jobs)) == {1}
    assert too_large(jobs, ONE_NODE.shape) == 1


def test_policies_that_get_stuck_are_told_of():
    with pytest.raises(SimulationStuck, match="1 jobs are left: 1"):
        outcomes([traced(1)], chosen=NotBefore(float("inf")))

    class Impatient(NotBefore):
        def plan(self, snapshot):
            return Plan((), again_at=snapshot.now)

    with pytest.raises(SimulationStuck, match="has passed already"):
        outcomes([traced(1)], chosen=Impatient())

    class Restless(NotBefore):
        def plan(self, snapshot):
            return Plan((), again_at=snapshot.now + 1)

    offered = workload([traced(1)], ONE_NODE.shape, Model(), elastic=False)
    with pytest.raises(SimulationStuck, match="again and again"):
        simulate(offered, SimulatedScheduler(ONE_NODE.topology(), Restless(), placement("pack"), patience=50))


def test_slots_given_out_twice_are_found():
    class Twice:
        def place(self, job, replicas, free, topology):
            return (("node-1", (0,)),)

    offered = workload([traced(1), traced(2)], ONE_NODE.shape, Model(), elastic=False)
    with pytest.raises(ValueError, match=messages.NOT_ALL_FREE):
        simulate(offered, SimulatedScheduler(ONE_NODE.topology(), policy("fifo"), Twice()))


def test_what_policies_see_of_a_job_is_true_since_it_got_its_places():
    seen = []

    class Watching(NewestFirst):
        def plan(self, snapshot):
            seen.append({job.job_id: job for job in snapshot.jobs})
            return super().plan(snapshot)

    outcomes([traced(1, slots=2), traced(2, 10.0, 50.0, slots=2)], chosen=Watching())
    first, second, third = (views[1] for views in seen)
    assert (first.remaining_s, first.consumed(0.0), first.runs) == (100.0, 0.0, False)
    assert (second.remaining_s, second.consumed(10.0), second.runs) == (100.0, 20.0, True)
    assert second.rates == ((2, pytest.approx(1 / 2.6)),)
    assert (third.remaining_s, third.consumed(60.0), third.runs) == (90.0, 20.0, False)


def test_policies_see_what_owners_have_used_and_that_those_who_never_move_keep_theirs():
    seen = []

    class Watching(NotBefore):
        def plan(self, snapshot):
            seen.append(snapshot)
            return policy("fifo").plan(snapshot)

    jobs = [traced(1, slots=2), traced(2, 10.0, 50.0, slots=2, owner="bob"), traced(3, 120.0)]
    outcomes(jobs, chosen=Watching())
    used = [{name: usage.slot_s for name, usage in snapshot.usage.items()} for snapshot in seen]
    assert used[1] == {"ada": pytest.approx(20.0, rel=1e-3)}
    assert used[2] == {"ada": pytest.approx(200.0, rel=1e-3)}
    assert used[3] == {"ada": pytest.approx(200.0, rel=1e-3), "bob": pytest.approx(40.0, rel=1e-3)}
    assert all(not job.is_preemptible(snapshot.now) for snapshot in seen for job in snapshot.running)


@given(
    st.lists(st.tuples(st.floats(1, 1e5), st.integers(0, 8)), min_size=1, max_size=6),
    st.floats(1e4, 1e6),
)
def test_use_decays_as_if_it_were_added_up_in_small_steps(held, half_life_s):
    meter, now, slow = Meter(half_life_s), 0.0, 0.0
    before = 0
    for seconds, slots in held:
        meter.add("ada", slots - before)
        before = slots
        for _ in range(50):
            step_s = seconds / 50
            slow = slow * 0.5 ** (step_s / half_life_s) + slots * step_s * 0.5 ** (step_s / 2 / half_life_s)
        now += seconds
        fast = meter.read(now)["ada"].slot_s
    assert fast == pytest.approx(slow, rel=0.02)
    assert meter.read(now + half_life_s * 40)["ada"].slot_s < max(1e-3, 2 * before * half_life_s)


def test_use_that_was_there_before_counts_and_keeps_its_weight():
    meter = Meter(100.0, 1000.0, {"ada": Usage(80.0, weight=2.0)})
    assert meter.read(1100.0)["ada"] == Usage(40.0, weight=2.0)


def test_jains_index():
    assert jain([3.0, 3.0, 3.0]) == 1.0
    assert jain([1.0, 0.0, 0.0]) == pytest.approx(1 / 3)


def test_figures_of_a_replay():
    ended = outcomes([traced(1, slots=2), traced(2, duration_s=50.0, owner="bob")])
    figures = measure(list(ended.values()), ONE_NODE.shape.slots)
    assert (figures.average_s, figures.median_s, figures.p99_s) == (125.0, 125.0, 150.0)
    assert (figures.makespan_s, figures.longest_wait_s) == (150.0, 100.0)
    assert figures.busy == pytest.approx((200 + 50) / 300)
    assert figures.jain_sizes == figures.jain_owners == pytest.approx(jain([100 / 100, 50 / 150]))
    third = outcomes([traced(3, slots=2), traced(4, owner="cid"), traced(5, owner="eve")], TWO_NODES)
    figures = measure([*ended.values(), *third.values()], ONE_NODE.shape.slots)
    assert figures.jain_owners == pytest.approx(jain([1.0, 50 / 150, 1.0, 1.0]))
    spread = over_runs([figures, figures])["average_s"]
    assert (spread.mean, spread.spread) == (110.0, 0.0)


def test_the_same_jobs_are_compared_in_the_order_asked_for():
    traces = [draw(Lab(jobs=20, load=0), seed) for seed in (0, 1)]
    rows = list(compare(traces, ["srtf", "fifo"], ["pack", "spread"], Setting(Shape(3, 4))))
    assert [(row.policy, row.placement) for row in rows] == [
        ("srtf", "pack"),
        ("srtf", "spread"),
        ("fifo", "pack"),
        ("fifo", "spread"),
    ]
    assert all(len(row.runs) == 2 and len(row.outcomes) == 20 for row in rows)
    assert rows[0].figures()["average_s"].mean < rows[2].figures()["average_s"].mean


few_jobs = st.lists(
    st.tuples(st.floats(0, 5000), st.floats(1, 5000), st.integers(1, 6), st.sampled_from(["ada", "bob"])),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("place", ["pack", "locality"])
@settings(max_examples=8, deadline=None)
@given(few_jobs)
def test_every_job_ends_with_its_work_done_and_never_more_slots_than_there_are(name, place, drawn):
    shape, model = Shape(2, 3), Model()
    jobs = [
        traced(number, at, lasts, slots, owner=who) for number, (at, lasts, slots, who) in enumerate(drawn)
    ]
    chosen = policy(name)
    offered = workload(jobs, shape, model, elastic=chosen.elastic)
    scheduler = SimulatedScheduler(Topology(shape.by_node()), chosen, placement(place), model)
    ended = simulate(offered, scheduler).outcomes
    assert {job.job_id for job in ended} == {job.job_id for job in jobs}
    fastest = {work.view.job_id: work.speeds.rate(work.view.max_replicas, 1) for work in offered}
    for job in ended:
        assert job.submitted_at <= job.started_at < job.ended_at
        assert job.held_s * fastest[job.job_id] >= job.alone_s * 0.999
        assert job.restarts <= 0 or chosen.preemptive
    assert sum(job.slot_s for job in ended) <= shape.slots * measure(ended, shape.slots).makespan_s * 1.001
    assert simulate(offered, scheduler).outcomes == ended, "the same input gives the same replay"
