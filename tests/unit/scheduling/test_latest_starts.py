"""The latest start of a waiting job if all jobs run to their time limits, where it exists."""

from dataclasses import replace

import pytest

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import JobView, Snapshot, Topology, Usage
from minicluster_hub.scheduling.placement import placement
from minicluster_hub.scheduling.policies import policy
from minicluster_hub.scheduling.standing import why_before
from minicluster_hub.simulator.forecast import LIMIT_SHARE, forecast, latest_starts

from ... import messages

NOW = 1000.0
NODES = Topology({"node-1": 1, "node-2": 1})
HOLDS = JobView(
    1, "bob", 0.0, 2, 2, places=(("node-1", (0,)), ("node-2", (0,))), since=NOW, time_limit_s=600.0
)


def waiting(job_id, time_limit_s, owner="ada", **more):
    return JobView(job_id, owner, float(job_id), 2, 2, since=float(job_id), time_limit_s=time_limit_s, **more)


def snapshot(*jobs, **more):
    free = FreeSlots({"node-1": range(1), "node-2": range(1)})
    for job in jobs:
        free.remove(job.places)
    return Snapshot(NOW, jobs, free, NODES, **more)


def latest(*jobs):
    return latest_starts(snapshot(*jobs), policy("fifo"), placement("pack"))


def test_all_run_to_their_limits_whatever_their_progress_says():
    jobs = replace(HOLDS, remaining_s=5.0), waiting(5, 300.0), waiting(6, 60.0)
    assert latest(*jobs) == {5: pytest.approx(NOW + 600), 6: pytest.approx(NOW + 900)}
    expected = forecast(snapshot(HOLDS, *jobs[1:]), policy("fifo"), placement("pack"))
    assert expected[6] == pytest.approx(NOW + LIMIT_SHARE * 900)


def test_nothing_is_told_where_a_job_without_a_limit_goes_before():
    assert latest(HOLDS, waiting(5, None), waiting(6, 60.0)) == {5: pytest.approx(NOW + 600)}
    assert latest(replace(HOLDS, time_limit_s=None), waiting(5, 300.0)) == {}


@pytest.mark.parametrize(
    ("name", "other", "told"),
    [
        ("fifo", {}, messages.CAME_EARLIER),
        ("priority", {"priority": 60}, "priority 60, yours 50"),
        ("priority", {}, messages.CAME_EARLIER),
        ("fair_share", {}, "fair share: its owner has had less than you"),
        ("srtf", {"remaining_s": 1.0}, "is expected to be done sooner"),
        ("las", {}, "has had less so far"),
        ("a_labs_own", {"submitted_at": 50.0}, "fits earlier into what becomes free"),
    ],
)
def test_why_another_goes_first_is_what_the_policy_looks_at(name, other, told):
    mine = replace(waiting(7, 300.0, remaining_s=200.0), consumed_slot_s=60.0)
    theirs = replace(waiting(5, 300.0, "bob"), **other)
    here = snapshot(theirs, mine, usage={"ada": Usage(slot_s=50.0), "bob": Usage(slot_s=10.0)})
    assert why_before(theirs, mine, here, name) == told
