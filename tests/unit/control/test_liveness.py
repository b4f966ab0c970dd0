"""Only agents' silence counts, not time in which the service did not listen."""

import pytest

from minicluster_hub.control.liveness import INATTENTIVE_S, LOOK_S, Liveness


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def listen(liveness, clock, seconds):
    """Let time pass in a service whose loop runs."""
    until = clock.now + seconds
    while clock.now < until:
        clock.now = min(until, clock.now + LOOK_S)
        liveness.record_service_alive()


def test_an_agent_is_silent_since_it_last_spoke():
    clock = Clock()
    liveness = Liveness(clock)
    listen(liveness, clock, 10)
    liveness.record_heartbeat(1)
    listen(liveness, clock, 2)
    assert liveness.silence_s([1, 2]) == {1: 2.0, 2: 12.0}


def test_a_service_that_was_frozen_has_heard_nobody():
    clock = Clock()
    liveness = Liveness(clock)
    liveness.record_heartbeat(1)
    listen(liveness, clock, 1)
    clock.now += 3600
    liveness.record_service_alive()
    assert liveness.silence_s([1]) == {1: 0.0}
    listen(liveness, clock, 2)
    assert liveness.silence_s([1]) == {1: 2.0}, "and counts from then on"


def test_a_short_pause_of_the_loop_does_not_hide_a_silence():
    clock = Clock()
    liveness = Liveness(clock)
    liveness.record_heartbeat(1)
    for _ in range(5):
        clock.now += INATTENTIVE_S * 0.9
        liveness.record_service_alive()
    assert liveness.silence_s([1])[1] == pytest.approx(5 * INATTENTIVE_S * 0.9)


def test_to_read_the_silence_changes_nothing():
    clock = Clock()
    liveness = Liveness(clock)
    liveness.record_heartbeat(1)
    listen(liveness, clock, 1)
    clock.now += 3600
    assert liveness.silence_s([1]) == {1: 0.0}
    clock.now += 2
    assert liveness.silence_s([1]) == {1: 0.0}, "nobody noted since that the service listens"


def test_what_an_agent_does_not_reach_is_known_until_it_says_otherwise():
    liveness = Liveness(Clock())
    assert liveness.record_heartbeat(1, ("task-2:4000",)) and not liveness.record_heartbeat(
        1, ("task-2:4000",)
    )
    assert liveness.unreached == {1: ("task-2:4000",)}
    assert liveness.record_heartbeat(1) and not any(liveness.unreached.values())
    liveness.record_heartbeat(1, ("task-2:4000",))
    liveness.keep_only([2])
    assert liveness.unreached == {}


def test_who_is_not_asked_for_is_forgotten():
    clock = Clock()
    liveness = Liveness(clock)
    listen(liveness, clock, 5)
    liveness.record_heartbeat(1)
    liveness.keep_only([2])
    assert liveness.silence_s([1]) == {1: 5.0}, "as if it had never spoken"


def test_who_could_not_be_understood_was_not_silent():
    clock = Clock()
    liveness = Liveness(clock)
    liveness.record_heartbeat(1)
    listen(liveness, clock, 2)
    liveness.reset_silence()
    listen(liveness, clock, 1)
    assert liveness.silence_s([1, 2]) == {1: 1.0, 2: 1.0}
