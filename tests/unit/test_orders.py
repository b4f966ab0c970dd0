"""What each task is told to do, from a world put together by hand."""

from dataclasses import replace

import pytest

from minicluster.wire import BlobInfo, JobState, RankState, StopMode
from minicluster_hub.models import GangTarget, RankRecord, SnapshotRecord, TaskState
from minicluster_hub.orders import TaskOver, orders_for

from .worlds import NOW, READY, TOLERANT, job, lit, scene_of, sight, task, world


def test_orders_say_the_place_of_each_rank():
    scene = scene_of(world(job(JobState.STARTING, attempts=2), READY, (RankState.PENDING,) * 2))
    run = orders_for(READY[1], scene).run
    assert (run.first_rank, run.world_size, run.group_rank, run.restart_count) == (1, 2, 1, 1)
    assert (run.master_addr, run.master_port) == ("127.0.0.1", 4000), "the first task's store"


def test_ranks_keep_their_places_when_others_are_lost():
    ranks = tuple(RankRecord(70, rank, 30 + rank, RankState.STARTED, None, None) for rank in range(3))
    here = replace(world(job(JobState.REQUEUING, state_since=NOW), (task(1), task(2))), ranks=ranks)
    run = orders_for(here.tasks[0], scene_of(here)).run
    assert (run.group_rank, run.group_world_size) == (1, 3)


def test_orders_name_the_newest_snapshot_of_the_attempts_before():
    part = BlobInfo(sha256="b" * 64, size_bytes=5)
    # Attempt 60 had begun again from step 0: its step 20 is newer than step 90 of attempt 50.
    made = ((50, 90), (60, 20), (70, 30))
    left = [SnapshotRecord(7, step, attempt, (part,), NOW) for attempt, step in made]
    here = replace(world(job(attempts=3), READY), snapshots=tuple(left))
    wanted = orders_for(READY[0], scene_of(here)).run.snapshot
    assert (wanted.attempt, wanted.step, wanted.parts) == (60, 20, (part,))
    own = replace(here, snapshots=(left[2],))
    assert orders_for(READY[0], scene_of(own)).run.snapshot is None


def test_orders_wait_until_the_whole_gang_is_ready():
    half = (task(0), task(1, TaskState.STARTED))
    assert orders_for(half[0], scene_of(world(job(JobState.STARTING), half))).run is None


def test_ranks_of_a_fault_tolerant_job_start_once_they_can_meet():
    here = world(job(JobState.STARTING, spec=TOLERANT), READY, (RankState.PENDING,) * 2)
    alone = scene_of(here)
    assert orders_for(READY[0], alone).run is None
    scene = scene_of(here, lit(sight()))
    assert orders_for(READY[0], scene).run is not None


def test_orders_of_a_fault_tolerant_attempt_tell_who_joins_and_who_brings_the_result():
    tasks = (task(1), task(2))
    ranks = tuple(
        RankRecord(70, rank, 30 + rank, RankState.STARTED, None, None, joined=rank == 2) for rank in range(3)
    )
    here = replace(world(job(spec=TOLERANT), tasks), ranks=ranks)
    scene = scene_of(here, lit(sight()))
    survivor, newcomer = (orders_for(one, scene).run for one in tasks)
    assert (survivor.joins, survivor.lead, survivor.world_size) == (False, True, 2)
    assert (newcomer.joins, newcomer.lead, newcomer.world_size) == (True, False, 2)
    assert (survivor.fault_tolerant, survivor.lighthouse) == (True, "127.0.0.1:5000")


@pytest.mark.parametrize(
    ("state", "mode"),
    [(JobState.STOPPING, StopMode.INTERRUPT), (JobState.FAILING, StopMode.ABORT), (JobState.RUNNING, None)],
)
def test_orders_to_stop(state, mode):
    assert orders_for(READY[0], scene_of(world(job(state), READY))).stop is mode


def test_orders_are_the_same_after_a_restart_and_over_when_the_gang_ends():
    first = orders_for(READY[0], scene_of(world(job(), READY)))
    assert orders_for(READY[0], scene_of(world(job(), READY))).version == first.version
    with pytest.raises(TaskOver):
        orders_for(READY[0], scene_of(world(job(), READY, target=GangTarget.END)))
