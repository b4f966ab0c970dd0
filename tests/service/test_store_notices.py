"""The outbox of notices: what is written into it, and that a step which is not taken writes nothing."""

import pytest

from minicluster.wire import JobState, NoticeEvent, NoticeWishes
from minicluster_hub.states import JobEvent, TransitionImpossible
from minicluster_hub.store.notices import EMAIL, WEBHOOK

ALL = NoticeWishes(events=tuple(NoticeEvent), webhook="https://hooks.example.org/x", email="ada@lab.org")


def told(store, lane):
    """Take what is in a lane out of it."""
    events = []
    while found := store.notices.next(lane):
        events.append(found[0].notice.event)
        store.notices.done(found[0])
    return events


@pytest.mark.parametrize(
    ("state", "events"),
    [
        (JobState.QUEUED, []),
        (JobState.RUNNING, ["started"]),
        (JobState.YIELDING, ["started", "preempted"]),
        (JobState.SUCCEEDED, ["ended"]),
        (JobState.STOPPED, ["ended"]),
        (JobState.FAILED, ["failed"]),
        (JobState.REQUEUING, []),
    ],
)
def test_each_step_that_is_wanted_is_written_once_for_each_way(store, given, state, events):
    store.notices.wish("ada", ALL)
    given.job_in(state)
    assert told(store, ("ada", WEBHOOK)) == told(store, ("ada", EMAIL)) == events


def test_a_step_that_is_not_possible_leaves_no_notice(store, given):
    store.notices.wish("ada", ALL)
    job = given.job_in(JobState.SUCCEEDED)
    told(store, ("ada", WEBHOOK))
    with pytest.raises(TransitionImpossible):
        store.apply(job.id, JobEvent.RANKS_STARTED, 9.0)
    assert told(store, ("ada", WEBHOOK)) == []


def test_one_that_is_put_off_comes_after_those_that_are_due_and_goes_where_its_owner_wants_now(store):
    store.notices.wish("ada", ALL)
    for at in (1.0, 2.0):
        store.notices.tell("ada", NoticeEvent.GPU_WARNED, at)
    first, target = store.notices.next(("ada", WEBHOOK))
    assert (first.notice.at, target) == (1.0, ALL.webhook)
    store.notices.again(first, 5.0)
    second, _ = store.notices.next(("ada", WEBHOOK))
    assert second.notice.at == 2.0
    store.notices.done(second)
    store.notices.wish("ada", ALL.model_copy(update={"webhook": None}))
    again, target = store.notices.next(("ada", WEBHOOK))
    assert (again.notice.id, again.tries, target) == (first.notice.id, 1, None)
