"""A job's remaining work and speed, from what its training reported."""

import pytest

from minicluster.wire import JobState, Progress, Record
from minicluster_hub.control.progress_rates import ProgressRates
from minicluster_hub.jobs.records import StoredState
from minicluster_hub.scheduling.base import JobView
from minicluster_hub.scheduling.planning.speedups import gain, remaining_s
from minicluster_hub.scheduling.progress_rate import WINDOW_S, ProgressRate, with_rate

from . import stored_states


def report_at(progress_rate, moments, *, total=100.0, attempt=1, replicas=1, rate=1.0, steps=10, begins=0.0):
    """Report a training's progress at these times, at so many units per second; return the answers."""
    return [
        progress_rate.receive(
            Progress(done=begins + rate * (at - moments[0]), total=total, steps=int(steps * rate * at)),
            at,
            1000.0 + at,
            attempt,
            replicas,
        )
        for at in moments
    ]


def view(*, replicas=0, since=1000.0, **more):
    places = tuple((f"node-{number}", (0,)) for number in range(replicas))
    return JobView(7, "ada", 0.0, 1, 4, places=places, since=since, **more)


def test_what_is_left_is_the_steps_to_do_by_the_rate_of_those_done():
    progress_rate = ProgressRate()
    report_at(progress_rate, [0, 5, 10, 20])
    assert remaining_s(with_rate(view(), progress_rate), 2000.0) == pytest.approx(80.0)


def test_the_start_is_not_in_the_rate():
    progress_rate = ProgressRate()
    progress_rate.receive(Progress(done=0.0, total=10.0), 0.0, 1000.0, 1, 1)
    for at, done in ((100.0, 1.0), (102.0, 2.0), (104.0, 3.0)):
        progress_rate.receive(Progress(done=done, total=10.0), at, 1000.0 + at, 1, 1)
    assert progress_rate.rates == {1: pytest.approx(0.5)}


def test_the_rate_is_that_of_the_last_minutes():
    progress_rate = ProgressRate()
    report_at(progress_rate, [float(at) for at in range(0, 600, 10)], total=1e6)
    report_at(progress_rate, [float(at) for at in range(600, 1200, 10)], total=1e6, rate=3.0, begins=600.0)
    assert progress_rate.rates[1] == pytest.approx(3.0)
    assert len(progress_rate._marks) <= WINDOW_S / 10 + 2


def test_what_is_left_of_a_running_job_falls_with_the_time_since_it_was_told():
    progress_rate = ProgressRate()
    report_at(progress_rate, [0, 10, 20], replicas=2)
    running = with_rate(view(replicas=2, since=950.0), progress_rate)
    on_two = gain(running, 1, 2)
    assert remaining_s(running, 1020.0) == pytest.approx(80.0 * on_two)
    assert remaining_s(running, 1050.0) == pytest.approx(50.0 * on_two)
    moved = with_rate(view(replicas=2, since=950.0, consumed_slot_s=60.0), progress_rate)
    assert remaining_s(moved, 1020.0) == pytest.approx(80.0 * on_two)


def test_a_job_that_waits_again_keeps_what_was_known():
    progress_rate = ProgressRate()
    report_at(progress_rate, [0, 10, 20])
    waiting = with_rate(view(since=5000.0), progress_rate)
    assert remaining_s(waiting, 9000.0) == pytest.approx(80.0)


def test_the_speeds_on_all_sizes_are_compared_in_the_same_unit():
    progress_rate = ProgressRate()
    report_at(progress_rate, [0, 10, 20], replicas=1, rate=0.1, steps=400, total=9.0)
    report_at(progress_rate, [0, 10, 20], replicas=4, rate=0.3, steps=100, total=9.0, attempt=2)
    seen = with_rate(view(), progress_rate)
    assert gain(seen, 1, 4) == pytest.approx(3.0)
    assert dict(seen.rates)[4] == pytest.approx(30.0), "in steps a second, of the size that it has"


def test_a_new_attempt_begins_a_new_rate():
    progress_rate = ProgressRate()
    report_at(progress_rate, [0, 10, 20])
    progress_rate.receive(Progress(done=0.0, total=80.0), 500.0, 1500.0, 2, 1)
    assert (progress_rate.rates, progress_rate.left) == ({1: pytest.approx(1.0)}, 80.0)
    report_at(progress_rate, [500, 510, 520], rate=2.0, total=80.0, attempt=2)
    assert progress_rate.rates == {1: pytest.approx(2.0)}


def test_what_is_sent_twice_counts_once():
    progress_rate = ProgressRate()
    report_at(progress_rate, [0, 10, 20])
    progress_rate.receive(Progress(done=10.0, total=100.0), 10.0, 1021.0, 1, 1)
    assert (progress_rate.rates, progress_rate.left) == ({1: pytest.approx(1.0)}, 80.0)


def test_without_a_total_its_speed_is_known_and_not_its_end():
    progress_rate = ProgressRate()
    report_at(progress_rate, [0, 10, 20], total=None)
    seen = with_rate(view(), progress_rate)
    assert seen.remaining_s is None and seen.rates == ((1, pytest.approx(10.0)),)


@pytest.mark.parametrize("at", [float("inf"), float("nan"), 0.0, -5.0])
def test_a_clock_that_tells_nonsense_makes_no_rate(at):
    progress_rate = ProgressRate()
    progress_rate.receive(Progress(done=0.0, total=10.0), 0.0, 1000.0, 1, 1)
    progress_rate.receive(Progress(done=1.0, total=10.0), 0.0, 1000.0, 1, 1)
    progress_rate.receive(Progress(done=2.0, total=10.0), at, 1000.0, 1, 1)
    assert progress_rate.rates == {} and with_rate(view(), progress_rate).remaining_s is None


def test_gradients_count_only_with_the_steps_that_exchange_them():
    progress_rate = ProgressRate()
    for at in (0.0, 1.0, 3.0):
        progress_rate.receive(Progress(done=at, gradient_bytes=44), at, at, 1, 1)
    assert with_rate(view(), progress_rate).gradient_bytes == 0
    for at in (4.0, 6.0):
        progress_rate.receive(Progress(done=at, gradient_bytes=44, steps=int(at)), at, at, 1, 1)
    assert with_rate(view(), progress_rate).gradient_bytes == 44


def test_it_is_news_when_the_end_is_known_or_another():
    progress_rate = ProgressRate()
    assert report_at(progress_rate, [0, 1, 2, 4]) == [False, False, True, False]
    assert report_at(progress_rate, [4, 5, 6], begins=4.0) == [False, False, False]
    assert True in report_at(progress_rate, [6.0, 7.0, 60.0], begins=6.0, rate=0.2)


# The stored form.


def lines(*moments, **more):
    wholes = (Progress(done=at, total=100.0, steps=int(at), **more) for at in moments)
    made = (Record(kind="progress", rank=0, at=whole.done, whole=whole) for whole in wholes)
    return b"".join(one.model_dump_json(exclude_defaults=True).encode() + b"\n" for one in made)


def seen(state, **changes):
    return StoredState((stored_states.job(state, **changes),), (), (), (), ())


def receive_records(progress_rates, *moments, attempt=1):
    for at in moments:
        progress_rates.receive(7, attempt, 2, b'{"kind":"log"}\n' + lines(at) + b'{"kind":"prog', 1000.0 + at)


def test_a_job_is_known_by_its_records_until_it_is_over():
    progress_rates = ProgressRates()
    progress_rates.update(seen(JobState.RUNNING))
    receive_records(progress_rates, 0.0, 10.0, 20.0)
    assert progress_rates.known(view()).remaining_s is not None
    progress_rates.update(StoredState((), (), (), (), ()))
    assert progress_rates.known(view()).remaining_s is None


def test_what_a_move_costs_is_measured_without_the_time_in_the_queue():
    progress_rates = ProgressRates()
    progress_rates.update(seen(JobState.RUNNING))
    receive_records(progress_rates, 0.0, 10.0, 20.0)
    assert progress_rates.known(view()).restart_cost_s == view().restart_cost_s, "nothing was measured yet"
    for state, since in ((JobState.YIELDING, 2000.0), (JobState.QUEUED, 2003.0), (JobState.STARTING, 3000.0)):
        progress_rates.update(seen(state, state_since=since))
    progress_rates.receive(7, 2, 2, lines(0.0), 3005.0)
    progress_rates.receive(7, 2, 2, lines(9.0), 3500.0)
    assert progress_rates.known(view()).restart_cost_s == 8.0


def test_a_service_that_begins_anew_recalls_the_newest_attempt():
    records = b"cut}\n" + lines(*map(float, range(20)))
    progress_rates = ProgressRates(lambda job_id, attempt: records if attempt == 1 else b"")
    progress_rates.update(seen(JobState.QUEUED))
    ((replicas, rate),) = progress_rates.known(view()).rates
    assert (replicas, rate) == (2, pytest.approx(1.0)) and progress_rates.known(
        view()
    ).remaining_s is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'"whole":',
        b'{"whole":\n',
        lines(1.0)[:-1],
        b'{"kind":"log","label":"\\"whole\\":"}\n',
        b'"whole":\n' * 9,
    ],
)
def test_what_is_no_record_tells_nothing(data):
    progress_rates = ProgressRates()
    progress_rates.update(seen(JobState.RUNNING))
    assert not progress_rates.receive(7, 1, 1, data, 0.0)
    assert progress_rates.known(view()) == view()
