"""The outbox of notices: what is written to it; a step that is not taken writes nothing."""

import pytest

from minicluster.wire import JobState, NoticeEvent, NoticeSettings
from minicluster_hub.jobs.states import JobEvent, TransitionImpossible
from minicluster_hub.store.users.notices import CODE_S, EMAIL, MOST_WAITING, WEBHOOK

ALL = NoticeSettings(events=tuple(NoticeEvent), webhook="https://hooks.example.org/x", email="ada@lab.org")


def save_settings(store, wishes):
    store.notices.expect_code("ada", ALL.email, "12345678", 1.0)
    assert store.notices.confirm("ada", "12345678", 2.0)
    store.notices.save_settings("ada", wishes)


def drain(store, queue):
    """Take all notices out of a lane."""
    events = []
    while found := store.notices.next(queue):
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
    save_settings(store, ALL)
    given.job_in(state)
    assert drain(store, ("ada", WEBHOOK)) == drain(store, ("ada", EMAIL)) == events


def test_a_step_that_is_not_possible_leaves_no_notice(store, given):
    save_settings(store, ALL)
    job = given.job_in(JobState.SUCCEEDED)
    drain(store, ("ada", WEBHOOK))
    with pytest.raises(TransitionImpossible):
        store.apply(job.id, JobEvent.RANKS_STARTED, 9.0)
    assert drain(store, ("ada", WEBHOOK)) == []


def test_one_that_is_put_off_comes_after_those_that_are_due_and_goes_where_its_owner_wants_now(store):
    save_settings(store, ALL)
    for at in (1.0, 2.0):
        store.notices.tell("ada", NoticeEvent.GPU_WARNED, at)
    first, target = store.notices.next(("ada", WEBHOOK))
    assert (first.notice.at, target) == (1.0, ALL.webhook)
    store.notices.again(first, 5.0)
    second, _ = store.notices.next(("ada", WEBHOOK))
    assert second.notice.at == 2.0
    store.notices.done(second)
    store.notices.save_settings("ada", ALL.model_copy(update={"webhook": None}))
    again, target = store.notices.next(("ada", WEBHOOK))
    assert (again.notice.id, again.tries, target) == (first.notice.id, 1, None)


def test_more_than_can_be_sent_are_left_out_and_their_owner_is_told(store):
    save_settings(store, ALL)
    for at in range(MOST_WAITING + 5):
        store.notices.tell("ada", NoticeEvent.GPU_WARNED, float(at))
    assert "were left out" in store.notices.settings("ada")[1]
    assert len(drain(store, ("ada", WEBHOOK))) == len(drain(store, ("ada", EMAIL))) == MOST_WAITING


def test_a_code_is_good_for_a_day_and_for_the_last_address_alone(store):
    notices = store.notices
    notices.expect_code("ada", "ada@lab.org", "12345678", 1.0)
    assert not notices.confirm("ada", "12345678", 1.0 + CODE_S)
    notices.expect_code("ada", "ada@lab.org", "12345678", 1.0)
    notices.expect_code("ada", "other@lab.org", "87654321", 2.0)
    assert not notices.confirm("ada", "12345678", 3.0) and not notices.confirm("bob", "87654321", 3.0)
    assert notices.confirm("ada", "87654321", 3.0) and not notices.confirm("ada", "87654321", 4.0)
    assert notices.is_confirmed("ada", "other@lab.org") and not notices.is_confirmed("ada", "ada@lab.org")
