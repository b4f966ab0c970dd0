"""Other policies on past jobs, and predicted starts of waiting jobs."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import JobView, Snapshot, Topology, Usage
from minicluster_hub.scheduling.placement import placement
from minicluster_hub.scheduling.policies import POLICIES, policy
from minicluster_hub.simulator.forecast import LIMIT_SHARE, forecast
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.replay import SimulatedScheduler, Simulation
from minicluster_hub.simulator.what_if import PastJob, actual, comparable, what_if
from minicluster_hub.simulator.workload import Shape, TracedJob, workload

THREE = Topology({"node-1": 1, "node-2": 1, "node-3": 1})
NOW = 1000.0


def past(job_id, submitted_at, started_at, ran_s, nodes=1, **more):
    view = JobView(
        job_id,
        "ada",
        submitted_at,
        nodes,
        nodes,
        since=submitted_at,
        one_replica_per_node=True,
        not_preemptible_until=-inf,
        **more,
    )
    return PastJob(view, started_at, started_at + ran_s, ran_s, nodes)


def scheduler(name="fifo", **model):
    return SimulatedScheduler(THREE, policy(name), placement("pack"), Model(**model))


HISTORY = [past(1, 0.0, 0.0, 100.0, 2), past(2, 10.0, 100.0, 100.0, 3), past(3, 20.0, 200.0, 10.0)]


def test_the_policy_that_was_active_comes_out_as_it_really_was():
    assert actual(HISTORY, THREE).average_s == pytest.approx((100 + 190 + 190) / 3)
    for figure in ("average_s", "makespan_s", "longest_wait_s", "jain_sizes", "busy", "crossed"):
        really_was = getattr(actual(HISTORY, THREE), figure)
        assert getattr(what_if(HISTORY, scheduler()), figure) == pytest.approx(really_was), figure


def test_another_policy_would_have_let_the_short_job_pass():
    limited = [replace(job, view=replace(job.view, time_limit_s=job.ran_s)) for job in HISTORY]
    assert what_if(limited, scheduler("backfill")).average_s == pytest.approx((100 + 190 + 10) / 3)


def test_a_range_is_used_and_a_job_on_fewer_nodes_takes_longer():
    job = past(1, 0.0, 0.0, 100.0, 2)
    ranged = [replace(job, view=replace(job.view, min_replicas=1, max_replicas=3))]
    assert what_if(ranged, scheduler(exponent=1.0)).average_s == pytest.approx(job.ran_s * 2 / 3)


def test_jobs_that_never_ran_or_do_not_fit_are_not_compared():
    odd = [past(4, 0.0, 5.0, 0.0), past(5, 0.0, 0.0, 9.0, 4), past(6, 0.0, 0.0, 9.0, slots_per_replica=2)]
    assert comparable([*reversed(HISTORY), *odd], THREE) == HISTORY


def waiting(job_id, nodes=1, **more):
    return JobView(job_id, "ada", float(job_id), nodes, nodes, since=float(job_id), **more)


def running(job_id, *nodes, since=400.0, **more):
    places = tuple((node, (0,)) for node in nodes)
    return JobView(job_id, "bob", 0.0, len(nodes), len(nodes), places=places, since=since, **more)


def snapshot(*jobs, servers=(), up=THREE):
    free = FreeSlots({node: range(count) for node, count in up.slots.items()})
    for job in jobs:
        free.remove(job.places)
    for server in servers:
        free.remove(((server.node, server.slots),))
    return Snapshot(NOW, jobs, free, up, servers=tuple(servers))


def expected(here, name="fifo"):
    return forecast(here, policy(name), placement("pack"))


def test_what_fits_starts_now():
    assert expected(snapshot(waiting(5, 3))) == {5: NOW}


def test_progress_is_believed_before_time_limits():
    knows = running(1, "node-1", "node-2", "node-3", remaining_s=900.0, time_limit_s=5000.0)
    assert expected(snapshot(knows, waiting(5))) == {5: pytest.approx(400 + 900)}
    limited = replace(knows, remaining_s=None)
    assert expected(snapshot(limited, waiting(5))) == {5: pytest.approx(400 + LIMIT_SHARE * 5000)}
    outlived = replace(limited, time_limit_s=1000.0)
    assert expected(snapshot(outlived, waiting(5))) == {5: pytest.approx(400 + 1000)}


@pytest.mark.parametrize("name", POLICIES)
def test_nothing_is_told_of_a_start_that_rests_on_the_guess_of_an_end(name):
    silent, limited = running(1, "node-1", "node-2"), running(2, "node-3", time_limit_s=1000.0)
    here = snapshot(silent, limited, waiting(5, time_limit_s=100.0), waiting(6, 3, time_limit_s=100.0))
    assert expected(here, name) == {5: pytest.approx(400 + 1000)}, "job 6 needs the slots of job 1"


def test_a_job_of_unknown_length_that_waits_holds_up_those_behind_it():
    holds = running(1, "node-1", "node-2", "node-3", time_limit_s=1000.0)
    here = snapshot(holds, waiting(5, 3), waiting(6, time_limit_s=100.0))
    assert expected(here) == {5: pytest.approx(400 + 1000)}


def test_it_does_not_look_on_for_ever_where_jobs_of_unknown_length_take_turns():
    asked = []

    class Counted:
        preemptive, elastic = True, False

        def plan(self, snapshot):
            asked.append(snapshot.now)
            return policy("time_slice").plan(snapshot)

    server = ServerRecord(1, "eve", "", "node-3", (0,), None, 0.0)
    silent = running(1, "node-1", "node-2", not_preemptible_until=0.0)
    here = snapshot(silent, waiting(5, 2), waiting(6, 3), servers=[server])
    assert forecast(here, Counted(), placement("pack")).keys() == {5}
    assert len(asked) < 20


def test_a_job_that_should_have_ended_goes_on_for_a_while():
    overdue = running(1, "node-1", "node-2", "node-3", time_limit_s=500.0)
    assert expected(snapshot(overdue, waiting(5))) == {5: pytest.approx(NOW + 60)}


def test_who_is_before_one_is_counted():
    first, second = waiting(5, 3, time_limit_s=100.0), waiting(6, 3)
    here = snapshot(running(1, "node-1", remaining_s=700.0), first, second)
    assert expected(here) == {5: pytest.approx(1100), 6: pytest.approx(1150)}


def test_the_policy_decides_who_is_next():
    here = snapshot(
        running(1, "node-1", remaining_s=700.0, time_limit_s=700.0),
        waiting(5, 3, remaining_s=50.0),
        waiting(6, 1, remaining_s=20.0, time_limit_s=20.0),
    )
    assert expected(here)[6] == pytest.approx(1150)
    assert expected(here, "backfill") == {5: pytest.approx(1100), 6: NOW}


def test_notebook_servers_give_back_their_slots():
    server = ServerRecord(1, "eve", "", "node-2", (0,), 1500.0, 0.0)
    assert expected(snapshot(waiting(5, 3), servers=[server])) == {5: 1500.0}
    assert expected(snapshot(waiting(5, 3), servers=[replace(server, until=None)])) == {}


def test_slots_that_are_being_freed_are_counted_on():
    releasing = FreeSlots({"node-1": (0,), "node-2": (), "node-3": ()})
    here = snapshot(waiting(5, 3))
    here.free.remove(releasing.all())
    assert expected(replace(here, releasing=releasing)) == {5: NOW}


def test_a_job_that_was_started_again_has_not_worked_all_the_time():
    again = running(
        1, "node-1", "node-2", "node-3", remaining_s=900.0, consumed_slot_s=60.0, restart_cost_s=30.0
    )
    assert expected(snapshot(again, waiting(5))) == {5: pytest.approx(400 + 30 + 900)}


def test_what_owners_have_used_decides_where_the_policy_heeds_it():
    holds = running(1, "node-1", "node-2", "node-3", remaining_s=700.0)
    here = snapshot(
        holds, waiting(5, 3, remaining_s=50.0), replace(waiting(6, 3, remaining_s=50.0), owner="cid")
    )
    for name, first in (("ada", 6), ("cid", 5)):
        starts = expected(replace(here, usage={name: Usage(1e6)}), "fair_share")
        assert min(starts, key=lambda job_id: starts[job_id]) == first


def test_a_backfill_counts_on_notebook_servers_to_give_back_their_slots():
    server = ServerRecord(1, "eve", "", "node-3", (0,), 1500.0, 0.0)
    long = waiting(6, 1, remaining_s=4000.0, time_limit_s=4000.0)
    here = snapshot(
        running(1, "node-1", time_limit_s=700.0), waiting(5, 3, time_limit_s=100.0), long, servers=[server]
    )
    assert expected(here, "backfill")[6] > 1500.0, "it would delay the first"


def test_nothing_is_said_of_a_job_for_which_nodes_are_missing():
    assert expected(snapshot(waiting(5, 2), waiting(6, 1), up=Topology({"node-1": 1}))) == {}


few_jobs = st.lists(
    st.tuples(st.floats(0, 500), st.floats(1, 500), st.integers(1, 6)), min_size=1, max_size=10
)


@settings(deadline=None, max_examples=60)
@given(few_jobs, st.sampled_from(["pack", "spread"]))
def test_where_nobody_overtakes_and_progress_is_known_a_forecast_comes_true(drawn, place):
    """In the simulation, each job starts when predicted at its arrival."""
    shape = Shape(2, 3)
    jobs = [TracedJob(number, "ada", *numbers) for number, numbers in enumerate(drawn)]
    chosen = SimulatedScheduler(Topology(shape.by_node()), policy("fifo"), placement(place))
    simulation = Simulation(chosen, workload(jobs, shape, Model(), elastic=False))
    forecasts, started = {}, {}
    while (ended := simulation.advance()) is not None:
        started |= {outcome.job_id: outcome.started_at for outcome in ended}
        here = simulation.snapshot()
        for job_id, at in forecast(here, chosen.policy, chosen.placement).items():
            forecasts.setdefault(job_id, at)
    assert forecasts == {job_id: pytest.approx(started[job_id]) for job_id in forecasts}
    assert {job_id for job_id in started if started[job_id] > jobs[job_id].submitted_at} == set(forecasts)


@pytest.mark.parametrize("name", ["las", "elastic_fifo", "time_slice"])
def test_a_policy_that_preempts_lets_them_start_earlier(name):
    holds = running(
        1, "node-1", "node-2", "node-3", not_preemptible_until=0.0, remaining_s=1e6, consumed_slot_s=1e6
    )
    here = snapshot(replace(holds, min_replicas=1), waiting(5, remaining_s=10.0))
    assert expected(here, name)[5] < expected(here)[5]
