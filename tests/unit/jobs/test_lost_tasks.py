"""Lost tasks, and how a fault-tolerant job continues: stored states in, actions out."""

from dataclasses import replace

from minicluster.wire import (
    DISK_FULL_EXIT,
    DataAgentReport,
    DataUse,
    ErrorKind,
    JobError,
    JobState,
    RankState,
)
from minicluster_hub.datasets.node_tracker import DataSetTracker
from minicluster_hub.jobs.actions import DropTasks, EndGang, EndLighthouse, StartLighthouse
from minicluster_hub.jobs.gang_state import Observation, silent_nodes
from minicluster_hub.jobs.orders import orders_for
from minicluster_hub.jobs.records import (
    GangTarget,
    RankRecord,
    SnapshotRecord,
    StoredState,
    TaskState,
    TaskView,
)
from minicluster_hub.jobs.states import JobEvent

from ... import messages
from .stored_states import (
    CLEANED_UP,
    EXITED,
    FAILURE,
    LIMITS,
    NOW,
    READY,
    TOLERANT,
    acts,
    deadline_s,
    events,
    gang_state_of,
    job,
    lit,
    observation,
    stored,
    task,
)

CUT = JobError(kind=ErrorKind.EXCEPTION, message="RuntimeError: Connection closed by peer", rank=0, at=1.0)


def test_a_lost_task_starts_the_job_again():
    here = stored(job(), READY)
    assert events(acts(here, observation(31))) == [JobEvent.TASK_LOST]
    assert events(acts(here, observation(silent=(31,)))) == [JobEvent.TASK_LOST]


def test_a_task_that_was_ended_for_filling_its_disk_does_not_start_the_job_again():
    views = {**observation(31).views, 31: TaskView(31, alive=False, exit_code=DISK_FULL_EXIT)}
    (seen,) = acts(stored(job(), READY), replace(observation(31), views=views))
    assert seen.event is JobEvent.FAILURE_SEEN
    assert "filled the node's disk" in seen.error.message and seen.error.node == "node-1"


def test_a_session_that_lost_ranks_fails_and_says_so():
    session = job()
    session = replace(session, spec=session.spec.model_copy(update={"session": True}))
    (seen,) = acts(stored(session, READY), observation(31))
    assert seen.event is JobEvent.FAILURE_SEEN
    assert seen.error.message == "the session lost its ranks on node-1, with all that they had"
    starting = replace(session, state=JobState.STARTING)
    assert events(acts(stored(starting, READY), observation(31))) == [JobEvent.TASK_LOST], (
        "nothing is lost yet"
    )


def test_a_node_is_avoided_when_its_task_was_given_up_but_not_when_it_was_only_ended():
    ending = stored(None, READY, target=GangTarget.END)
    seen = Observation(observation().views, {30: 0.5, 31: LIMITS.suspect_timeout_s + 0.5}, NOW)
    assert silent_nodes(ending, seen, LIMITS, {3: 0.1}) == {"node-1"}
    assert silent_nodes(ending, seen, LIMITS, {3: 0.6}) == set(), "it spoke until it was ended"
    assert silent_nodes(ending, seen, LIMITS, {}) == set()
    gone = Observation(observation(31).views, seen.silence_s, NOW)
    assert silent_nodes(ending, gone, LIMITS, {3: 0.1}) == set(), "the engine knows by itself"


def test_a_node_is_not_avoided_when_its_task_was_ended_before_the_first_report():
    starting = (task(0), task(1, TaskState.STARTED))
    ending = stored(None, starting, target=GangTarget.END)
    silent_for = lambda seconds: Observation(observation().views, {30: 0.5, 31: seconds}, NOW)  # noqa: E731
    assert silent_nodes(ending, silent_for(LIMITS.boot_timeout_s - 1), LIMITS, {3: 0.1}) == set()
    assert silent_nodes(ending, silent_for(LIMITS.boot_timeout_s + 1), LIMITS, {3: 0.1}) == {"node-1"}


def test_the_others_stay_together_without_the_lost_one():
    here = stored(job(JobState.REQUEUING, state_since=NOW), READY)
    assert acts(here, observation(silent=(31,))) == (DropTasks(3, (31,), ""),)
    assert acts(here, observation(silent=(30, 31))) == (EndGang(3, ""),)


def test_lost_attempts_without_progress_are_counted_and_give_the_job_up():
    (seen,) = acts(stored(job(lost_attempts=1), READY), observation(31))
    assert (seen.event, seen.lost_attempts) == (JobEvent.TASK_LOST, 2)
    waiting = job(JobState.QUEUED, lost_attempts=LIMITS.max_lost_attempts, gang_id=None)
    nothing_runs = Observation({}, {}, NOW)
    (given_up,) = acts(StoredState((waiting,), (), (), (), ()), nothing_runs)
    assert (given_up.event, given_up.error.kind) == (JobEvent.FAILURE_SEEN, ErrorKind.LOST)
    assert acts(StoredState((replace(waiting, lost_attempts=2),), (), (), (), ()), nothing_runs) == ()


def test_a_snapshot_of_the_attempt_is_progress():
    snapshot = SnapshotRecord(7, 40, 70, (), 4990.0)
    (seen,) = acts(replace(stored(job(lost_attempts=2), READY), snapshots=(snapshot,)), observation(31))
    assert seen.lost_attempts == 1
    earlier = replace(snapshot, attempt_id=69)
    (seen,) = acts(replace(stored(job(lost_attempts=1), READY), snapshots=(earlier,)), observation(31))
    assert seen.lost_attempts == 2


def test_a_task_that_goes_with_its_node_at_start_starts_the_job_again():
    here = stored(job(JobState.STARTING), (task(0, TaskState.STARTED), task(1)), (RankState.PENDING,) * 2)
    gone = Observation({30: TaskView(30, alive=False, node_lost=True), 31: TaskView(31, alive=True)}, {}, NOW)
    assert events(acts(here, gone)) == [JobEvent.TASK_LOST]
    assert events(acts(here, observation(silent=(30,)))) == [JobEvent.TASK_LOST]


def test_an_agent_that_is_being_loaded_may_be_silent_for_longer():
    starting = (task(0, TaskState.STARTED), task(1))
    here = stored(job(JobState.STARTING, state_since=NOW), starting, (RankState.PENDING,) * 2)
    quiet = replace(observation(), silence_s={30: LIMITS.heartbeat_timeout_s + 1, 31: 0.1})
    assert acts(here, quiet) == ()
    assert deadline_s(here, quiet, LIMITS) > 1, "and is not looked at all the time"
    assert events(acts(here, replace(quiet, silence_s={30: LIMITS.boot_timeout_s + 1, 31: 0.1}))) != []


def test_a_lost_connection_is_the_failure_only_if_no_node_is_lost():
    failing = job(JobState.FAILING, state_since=NOW)
    here = stored(failing, (task(0, cleaned_up_attempt_id=70), task(1)), EXITED, (CUT, None))
    assert events(acts(here)) == []
    lost = acts(here, Observation(observation().views, {30: 0.1, 31: LIMITS.suspect_timeout_s + 0.1}, NOW))
    assert events(lost) == [JobEvent.TASK_LOST], "sooner than without the hint"
    both = stored(failing, CLEANED_UP, EXITED, (CUT, None))
    assert events(acts(both)) == [JobEvent.ATTEMPT_CLEANED_UP]


def test_a_cell_that_wraps_the_lost_connection_in_its_own_error_starts_again_too():
    wrapped = CUT.model_copy(update={"message": "TrainingFailed: no", "traceback": CUT.message})
    here = stored(job(JobState.FAILING, state_since=NOW), READY, EXITED, (wrapped, None))
    assert events(acts(here, observation(31))) == [JobEvent.TASK_LOST]


def test_a_failure_of_the_cell_itself_stays_one_though_a_node_is_lost():
    here = stored(job(JobState.FAILING, state_since=NOW), READY, EXITED, (CUT, FAILURE))
    assert events(acts(here, observation(30))) == []
    assert DropTasks(3, (30,), "") in acts(here, observation(30))


def test_a_fault_tolerant_attempt_goes_on_without_a_lost_task():
    here = stored(job(spec=TOLERANT), READY)
    assert acts(here, lit(observation(31))) == (DropTasks(3, (31,), ""),)
    assert events(acts(here, lit(observation(30, 31)))) == [JobEvent.TASK_LOST]
    alone = stored(job(spec=TOLERANT), (task(0, cleaned_up_attempt_id=70),), EXITED)
    assert events(acts(alone, lit(observation()))) == [JobEvent.RANKS_SUCCEEDED], (
        "the lost task's rank does not count"
    )


def test_a_task_joins_a_running_attempt_and_leaves_when_it_comes_too_late():
    joining = (task(0), task(1, TaskState.STARTED))
    here = stored(job(spec=TOLERANT), joining, (RankState.STARTED, RankState.PENDING))
    assert acts(here, lit(observation())) == ()
    gang_state = gang_state_of(here, lit(observation()))
    assert orders_for(joining[0], gang_state).run is not None, "the others go on"
    assert orders_for(joining[1], gang_state).run is None
    joined = stored(job(spec=TOLERANT), READY, (RankState.STARTED, RankState.PENDING))
    ready = gang_state_of(joined, lit(observation()))
    assert orders_for(READY[1], ready).run.first_rank == 1
    late = stored(job(spec=TOLERANT), joining, (RankState.EXITED, RankState.PENDING))
    assert acts(late, lit(observation())) == (DropTasks(3, (31,), ""),)


def test_a_task_whose_data_will_not_come_does_not_join():
    use = DataUse(name="pets", owner="ada", manifest_sha256="b" * 64, size_bytes=9)
    reads = job(spec=TOLERANT.model_copy(update={"data": (use,)}), data_attempt_id=70)
    here = stored(reads, READY, (RankState.STARTED, RankState.PENDING))
    data_set_tracker = DataSetTracker()
    failed = {
        "folder": data_set_tracker.folder(use),
        "standing": "failed",
        "attempt": 70,
        "detail": "disk full",
    }
    for node in ("node-0", "node-1"):
        data_set_tracker.receive(DataAgentReport.model_validate({"nodes": [node], "sets": [failed]}))
    seen = replace(lit(observation()), data=data_set_tracker.views(here))
    (dropped,) = acts(here, seen)
    assert isinstance(dropped, DropTasks) and dropped.task_ids == (31,), "the other trains already"
    assert dropped.reason.endswith(f"node-1 {messages.COULD_NOT_FETCH.format(name='pets')}disk full")


def test_a_newcomer_does_not_train_on_alone_when_the_others_have_finished():
    ranks = (
        RankRecord(70, 0, 30, RankState.EXITED, 0, None),
        RankRecord(70, 1, 31, RankState.STARTED, None, None, joined=True),
    )
    finished = replace(stored(job(spec=TOLERANT), (task(0, cleaned_up_attempt_id=70), task(1))), ranks=ranks)
    assert acts(finished, lit(observation())) == (DropTasks(3, (31,), ""),)
    delivering = replace(finished, tasks=READY)
    assert acts(delivering, lit(observation())) == (), "it may be about to finish as well"


def test_a_fault_tolerant_job_has_a_lighthouse_as_long_as_it_has_its_gang():
    here = stored(job(spec=TOLERANT), READY)
    assert acts(here) == (StartLighthouse(3),)
    assert acts(here, lit(observation())) == ()
    assert acts(here, lit(observation(), alive=False)) == (StartLighthouse(3),), "again, where it was"
    assert acts(stored(None, READY, idle_since=NOW), lit(observation())) == (EndLighthouse(3),)
    assert EndLighthouse(3) in acts(StoredState((), (), (), (), ()), lit(observation()))
