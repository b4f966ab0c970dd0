"""What must happen next, from a world put together by hand: events in, actions out."""

from dataclasses import replace

import pytest

from minicluster.runtime.ladder import LADDERS
from minicluster.wire import BlobInfo, ErrorKind, JobError, JobSpec, JobState, NodeRange, RankState, StopMode
from minicluster_hub.actions import (
    DropTasks,
    EndGang,
    EndLighthouse,
    EndTask,
    Happened,
    MarkEnded,
    MarkStarted,
    StartLighthouse,
    StartTask,
)
from minicluster_hub.deadlines import next_deadline
from minicluster_hub.engines.base import LighthouseView, TaskView
from minicluster_hub.lifecycle import decide
from minicluster_hub.models import (
    GangRecord,
    GangTarget,
    JobRecord,
    RankRecord,
    SnapshotRecord,
    TaskRecord,
    TaskState,
    World,
)
from minicluster_hub.orders import TaskOver, orders_for
from minicluster_hub.root_cause import root_cause
from minicluster_hub.scenes import Limits, Sight, scenes
from minicluster_hub.states import JobEvent

NOW = 5000.0
LIMITS = Limits()
SPEC = JobSpec(payload_sha256="a" * 64, nodes=NodeRange(min=2, max=2))
FAILURE = JobError(kind=ErrorKind.EXCEPTION, message="ValueError: no", rank=1, at=4999.0)


def job(state=JobState.RUNNING, **changes):
    record = JobRecord(
        id=7,
        owner="ada",
        spec=SPEC,
        state=state,
        reason="",
        created_at=4900.0,
        started_at=4950.0,
        ended_at=None,
        state_since=4950.0,
        attempts=1,
        attempt_id=70,
        gang_id=3,
        world_size=2,
        error=None,
        result=None,
    )
    return replace(record, **changes)


def task(index, state=TaskState.READY, **changes):
    record = TaskRecord(
        id=30 + index,
        gang_id=3,
        index=index,
        node=f"node-{index}",
        slots=(0,),
        state=state,
        token_hash="",
        address="127.0.0.1",
        store_port=4000 + index,
        cleared=0,
        failure=None,
        state_since=4940.0,
    )
    return replace(record, **changes)


def world(record, tasks, states=(RankState.STARTED, RankState.STARTED), errors=(None, None), **gang):
    bound = record.id if record is not None and not record.state.terminal else None
    row = GangRecord(
        3, "ada", gang.pop("target", GangTarget.KEEP), bound, 1, 4900.0, gang.pop("idle_since", None)
    )
    ranks = tuple(
        RankRecord(70, rank, 30 + rank, state, 0 if state is RankState.EXITED else None, error)
        for rank, (state, error) in enumerate(zip(states, errors, strict=True))
    )
    return World((record,) if bound else (), (row,), tuple(tasks), ranks if bound else (), ())


def sight(*dead, silent=(), missing=(), clean=()):
    views = {
        number: TaskView(number, alive=number not in dead, clean=number in clean, detail="last words")
        for number in (30, 31)
        if number not in missing
    }
    return Sight(views, {number: 99.0 if number in silent else 0.1 for number in (30, 31)}, NOW)


def acts(here, seen=None, limits=LIMITS):
    return decide(here, seen or sight(), limits)


def events(actions):
    return [action.event for action in actions if isinstance(action, Happened)]


READY = (task(0), task(1))
CLEARED = (task(0, cleared=70), task(1, cleared=70))
EXITED = (RankState.EXITED, RankState.EXITED)


def test_a_running_job_needs_nothing():
    assert acts(world(job(), READY)) == ()


def test_new_tasks_are_started_once():
    new = (task(0, TaskState.NEW), task(1, TaskState.NEW))
    starting = world(job(JobState.STARTING), new, (RankState.PENDING,) * 2)
    assert acts(starting, sight(missing=(30, 31))) == (StartTask(new[0]), StartTask(new[1]))
    assert acts(starting, sight(missing=(31,))) == (MarkStarted(new[0]), StartTask(new[1]))


def test_running_when_all_ranks_have_started():
    half = world(job(JobState.STARTING), READY, (RankState.STARTED, RankState.PENDING))
    assert events(acts(half)) == []
    assert events(acts(world(job(JobState.STARTING), READY))) == [JobEvent.RANKS_STARTED]


def test_success_only_when_every_task_has_sent_everything():
    waiting = (task(0, cleared=70), task(1))
    assert events(acts(world(job(), waiting, EXITED))) == []
    assert events(acts(world(job(), CLEARED, EXITED))) == [JobEvent.RANKS_SUCCEEDED]


def test_the_first_failed_rank_ends_the_attempt():
    (seen,) = acts(world(job(), READY, (RankState.STARTED, RankState.EXITED), (None, FAILURE)))
    assert seen.event is JobEvent.FAILURE_SEEN
    assert "rank 1" in seen.reason


def test_the_error_is_that_of_the_culprit_not_of_who_noticed_first():
    noticed = JobError(
        kind=ErrorKind.EXCEPTION, message="RuntimeError: Connection closed by peer", rank=0, at=4998.0
    )
    here = world(job(JobState.FAILING, state_since=NOW), CLEARED, EXITED, (noticed, FAILURE))
    (seen,) = acts(here)
    assert (seen.event, seen.error) == (JobEvent.CLEARED, FAILURE)


def test_of_two_failures_the_earlier_is_the_cause():
    later = FAILURE.model_copy(update={"rank": 0, "at": 5000.0})
    ranks = [RankRecord(70, e.rank, 30, RankState.EXITED, 1, e) for e in (later, FAILURE)]
    assert root_cause(ranks) == FAILURE
    assert root_cause([]) is None


def test_a_lost_task_starts_the_job_again():
    here = world(job(), READY)
    assert events(acts(here, sight(31))) == [JobEvent.TASK_LOST]
    assert events(acts(here, sight(silent=(31,)))) == [JobEvent.TASK_LOST]


def test_the_others_stay_together_without_the_lost_one():
    here = world(job(JobState.REQUEUING, state_since=NOW), READY)
    assert acts(here, sight(silent=(31,))) == (DropTasks(3, (31,), ""),)
    assert acts(here, sight(silent=(30, 31))) == (EndGang(3, ""),)


def test_losses_without_progress_are_counted_and_give_the_job_up():
    (seen,) = acts(world(job(losses=1), READY), sight(31))
    assert (seen.event, seen.losses) == (JobEvent.TASK_LOST, 2)
    waiting = job(JobState.QUEUED, losses=LIMITS.max_losses, gang_id=None)
    nothing_runs = Sight({}, {}, NOW)
    (given_up,) = acts(World((waiting,), (), (), (), ()), nothing_runs)
    assert (given_up.event, given_up.error.kind) == (JobEvent.FAILURE_SEEN, ErrorKind.LOST)
    assert acts(World((replace(waiting, losses=2),), (), (), (), ()), nothing_runs) == ()


def test_a_snapshot_of_the_attempt_is_progress():
    snapshot = SnapshotRecord(7, 40, 70, (), 4990.0)
    (seen,) = acts(replace(world(job(losses=2), READY), snapshots=(snapshot,)), sight(31))
    assert seen.losses == 1
    earlier = replace(snapshot, attempt_id=69)
    (seen,) = acts(replace(world(job(losses=1), READY), snapshots=(earlier,)), sight(31))
    assert seen.losses == 2


CUT = JobError(kind=ErrorKind.EXCEPTION, message="RuntimeError: Connection closed by peer", rank=0, at=1.0)


def test_a_lost_connection_is_the_failure_only_if_no_node_is_lost():
    failing = job(JobState.FAILING, state_since=NOW)
    here = world(failing, (task(0, cleared=70), task(1)), EXITED, (CUT, None))
    assert events(acts(here)) == []
    lost = acts(here, Sight(sight().views, {30: 0.1, 31: LIMITS.suspect_timeout_s + 0.1}, NOW))
    assert events(lost) == [JobEvent.TASK_LOST], "sooner than without the hint"
    both = world(failing, CLEARED, EXITED, (CUT, None))
    assert events(acts(both)) == [JobEvent.CLEARED]


def test_a_cell_that_wraps_the_lost_connection_in_its_own_error_starts_again_too():
    wrapped = CUT.model_copy(update={"message": "TrainingFailed: no", "traceback": CUT.message})
    here = world(job(JobState.FAILING, state_since=NOW), READY, EXITED, (wrapped, None))
    assert events(acts(here, sight(31))) == [JobEvent.TASK_LOST]


def test_a_failure_of_the_cell_itself_stays_one_though_a_node_is_lost():
    here = world(job(JobState.FAILING, state_since=NOW), READY, EXITED, (CUT, FAILURE))
    assert events(acts(here, sight(30))) == []
    assert DropTasks(3, (30,), "") in acts(here, sight(30))


TOLERANT = SPEC.model_copy(update={"fault_tolerant": True})


def lit(seen, alive=True):
    """Return the sight with a lighthouse for the gang."""
    return replace(seen, lighthouses={3: LighthouseView(3, "127.0.0.1:5000", alive)})


def test_a_fault_tolerant_attempt_goes_on_without_a_lost_task():
    here = world(job(spec=TOLERANT), READY)
    assert acts(here, lit(sight(31))) == (DropTasks(3, (31,), ""),)
    assert events(acts(here, lit(sight(30, 31)))) == [JobEvent.TASK_LOST]
    alone = world(job(spec=TOLERANT), (task(0, cleared=70),), EXITED)
    assert events(acts(alone, lit(sight()))) == [JobEvent.RANKS_SUCCEEDED], (
        "the lost task's rank does not count"
    )


def test_a_task_joins_a_running_attempt_and_leaves_when_it_comes_too_late():
    joining = (task(0), task(1, TaskState.STARTED))
    here = world(job(spec=TOLERANT), joining, (RankState.STARTED, RankState.PENDING))
    assert acts(here, lit(sight())) == ()
    (scene,) = scenes(here, lit(sight()), LIMITS)
    assert orders_for(joining[0], scene).run is not None, "the others go on"
    assert orders_for(joining[1], scene).run is None
    joined = world(job(spec=TOLERANT), READY, (RankState.STARTED, RankState.PENDING))
    (ready,) = scenes(joined, lit(sight()), LIMITS)
    assert orders_for(READY[1], ready).run.first_rank == 1
    late = world(job(spec=TOLERANT), joining, (RankState.EXITED, RankState.PENDING))
    assert acts(late, lit(sight())) == (DropTasks(3, (31,), ""),)


def test_orders_of_a_fault_tolerant_attempt_tell_who_joins_and_who_brings_the_result():
    tasks = (task(1), task(2))
    ranks = tuple(
        RankRecord(70, rank, 30 + rank, RankState.STARTED, None, None, joined=rank == 2) for rank in range(3)
    )
    here = replace(world(job(spec=TOLERANT), tasks), ranks=ranks)
    (scene,) = scenes(here, lit(sight()), LIMITS)
    survivor, newcomer = (orders_for(one, scene).run for one in tasks)
    assert (survivor.joins, survivor.lead, survivor.world_size) == (False, True, 2)
    assert (newcomer.joins, newcomer.lead, newcomer.world_size) == (True, False, 2)
    assert (survivor.fault_tolerant, survivor.lighthouse) == (True, "127.0.0.1:5000")


def test_a_newcomer_does_not_train_on_alone_when_the_others_have_finished():
    ranks = (
        RankRecord(70, 0, 30, RankState.EXITED, 0, None),
        RankRecord(70, 1, 31, RankState.STARTED, None, None, joined=True),
    )
    finished = replace(world(job(spec=TOLERANT), (task(0, cleared=70), task(1))), ranks=ranks)
    assert acts(finished, lit(sight())) == (DropTasks(3, (31,), ""),)
    delivering = replace(finished, tasks=READY)
    assert acts(delivering, lit(sight())) == (), "it may be about to finish as well"


def test_ranks_keep_their_places_when_others_are_lost():
    ranks = tuple(RankRecord(70, rank, 30 + rank, RankState.STARTED, None, None) for rank in range(3))
    here = replace(world(job(JobState.REQUEUING, state_since=NOW), (task(1), task(2))), ranks=ranks)
    run = orders_for(here.tasks[0], scene_of(here)).run
    assert (run.group_rank, run.group_world_size) == (1, 3)


def test_an_agent_that_dies_at_start_is_a_failure_with_its_last_words():
    here = world(job(JobState.STARTING), (task(0, TaskState.STARTED), task(1)), (RankState.PENDING,) * 2)
    (seen,) = acts(here, sight(30))
    assert (seen.event, seen.error.kind) == (JobEvent.FAILURE_SEEN, ErrorKind.START)
    assert seen.error.traceback == "last words"


def test_a_task_that_goes_with_its_node_at_start_starts_the_job_again():
    here = world(job(JobState.STARTING), (task(0, TaskState.STARTED), task(1)), (RankState.PENDING,) * 2)
    gone = Sight({30: TaskView(30, alive=False, node_lost=True), 31: TaskView(31, alive=True)}, {}, NOW)
    assert events(acts(here, gone)) == [JobEvent.TASK_LOST]
    assert events(acts(here, sight(silent=(30,)))) == [JobEvent.TASK_LOST]


def test_the_time_to_start_begins_when_the_last_node_has_the_image():
    new = (task(0, TaskState.NEW, state_since=4000.0), task(1, state_since=4000.0))
    here = world(job(JobState.STARTING, state_since=4000.0), new, (RankState.PENDING,) * 2)
    pulling = Sight({30: TaskView(30, alive=True, starting=True), 31: TaskView(31, alive=True)}, {}, NOW)
    assert acts(here, pulling) == ()
    assert events(acts(here)) == [JobEvent.FAILURE_SEEN]
    come = (task(0, TaskState.STARTED, state_since=NOW - 1), task(1, state_since=4000.0))
    assert acts(world(job(JobState.STARTING, state_since=4000.0), come, (RankState.PENDING,) * 2)) == ()


def test_an_agents_own_failure_is_told_with_its_node():
    failure = JobError(kind=ErrorKind.START, message="torch does not import")
    here = world(job(JobState.STARTING), (task(0, failure=failure), task(1)), (RankState.PENDING,) * 2)
    (seen,) = acts(here)
    assert (seen.error.message, seen.error.node) == ("torch does not import", "node-0")


@pytest.mark.parametrize("state", [JobState.STOPPING, JobState.FAILING, JobState.REQUEUING])
def test_an_ending_attempt_waits_for_its_ranks_and_then_is_cleared(state):
    recent = job(state, state_since=NOW - 3)
    assert acts(world(recent, READY)) == ()
    assert events(acts(world(recent, CLEARED, EXITED))) == [JobEvent.CLEARED]


def test_agents_that_do_not_end_their_ranks_are_ended():
    (ended,) = acts(world(job(JobState.STOPPING, state_since=NOW - 11), READY))
    assert isinstance(ended, EndGang)


def test_tasks_that_never_came_up_are_ended_with_their_job():
    here = world(job(JobState.STOPPING, state_since=NOW), (task(0, TaskState.STARTED), task(1)))
    assert DropTasks(3, (30,), "") in acts(here)
    neither = (task(0, TaskState.STARTED), task(1, TaskState.STARTED))
    assert EndGang(3, "") in acts(world(job(JobState.STOPPING, state_since=NOW), neither))


def test_ending_a_gang_frees_slots_only_when_nothing_is_left():
    here = world(None, READY, target=GangTarget.END)
    assert acts(here, sight()) == (EndTask(READY[0]), EndTask(READY[1]))
    assert acts(here, sight(30, clean=(30,))) == (MarkEnded(READY[0]), EndTask(READY[1]))
    assert acts(here, sight(30)) == (EndTask(READY[0]), EndTask(READY[1])), "dead but not swept yet"
    assert acts(here, sight(missing=(30, 31))) == (MarkEnded(READY[0]), MarkEnded(READY[1]))


def test_an_attempt_whose_tasks_are_all_gone_is_cleared():
    gone = (task(0, TaskState.ENDED), task(1, TaskState.ENDED))
    here = world(job(JobState.REQUEUING), gone, target=GangTarget.END)
    assert events(acts(here, sight(missing=(30, 31)))) == [JobEvent.CLEARED]


def test_a_warm_gang_is_kept_for_its_time_and_not_when_it_is_broken():
    assert acts(world(None, READY, idle_since=NOW - 119)) == ()
    assert acts(world(None, READY, idle_since=NOW - 121)) == (EndGang(3, ""),)
    assert DropTasks(3, (31,), "") in acts(world(None, READY, idle_since=NOW), sight(31))


def test_a_time_limit_ends_the_job_and_sets_the_deadline():
    limited = job(spec=SPEC.model_copy(update={"timeout_s": 40.0}))
    (seen,) = acts(world(limited, READY))
    assert (seen.event, seen.error.kind) == (JobEvent.FAILURE_SEEN, ErrorKind.TIMEOUT)
    in_time = job(spec=SPEC.model_copy(update={"timeout_s": 52.0}))
    assert acts(world(in_time, READY)) == ()
    assert next_deadline(world(in_time, READY), sight(), LIMITS) == pytest.approx(2.05)


def test_nothing_to_wait_for_means_no_timer():
    assert next_deadline(World((), (), (), (), ()), Sight({}, {}, NOW), LIMITS) is None


def scene_of(here):
    return next(iter(scenes(here, sight(), LIMITS)))


def test_orders_say_the_place_of_each_rank():
    scene = scene_of(world(job(JobState.STARTING, attempts=2), READY, (RankState.PENDING,) * 2))
    run = orders_for(READY[1], scene).run
    assert (run.first_rank, run.world_size, run.group_rank, run.restart_count) == (1, 2, 1, 1)
    assert (run.master_addr, run.master_port) == ("127.0.0.1", 4000), "the first task's store"


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


def test_limits_leave_room_for_the_agents_own_escalation():
    longest_s = max(sum(step.wait_s for step in steps) for steps in LADDERS.values())
    assert Limits().stop_patience_s > longest_s + 1


def test_a_fault_tolerant_job_has_a_lighthouse_as_long_as_it_has_its_gang():
    here = world(job(spec=TOLERANT), READY)
    assert acts(here) == (StartLighthouse(3),)
    assert acts(here, lit(sight())) == ()
    assert acts(here, lit(sight(), alive=False)) == (StartLighthouse(3),), "again, where it was"
    assert acts(world(None, READY, idle_since=NOW), lit(sight())) == (EndLighthouse(3),)
    assert EndLighthouse(3) in acts(World((), (), (), (), ()), lit(sight()))


def test_ranks_of_a_fault_tolerant_job_start_once_they_can_meet():
    here = world(job(JobState.STARTING, spec=TOLERANT), READY, (RankState.PENDING,) * 2)
    (alone,) = scenes(here, sight(), LIMITS)
    assert orders_for(READY[0], alone).run is None
    (scene,) = scenes(here, lit(sight()), LIMITS)
    assert orders_for(READY[0], scene).run is not None


def test_an_agent_that_is_being_loaded_may_be_silent_for_longer():
    starting = (task(0, TaskState.STARTED), task(1))
    here = world(job(JobState.STARTING, state_since=NOW), starting, (RankState.PENDING,) * 2)
    quiet = replace(sight(), silence_s={30: LIMITS.heartbeat_timeout_s + 1, 31: 0.1})
    assert acts(here, quiet) == ()
    assert next_deadline(here, quiet, LIMITS) > 1, "and is not looked at all the time"
    assert events(acts(here, replace(quiet, silence_s={30: LIMITS.boot_timeout_s + 1, 31: 0.1}))) != []
