"""A job's speed-up with more replicas, and its remaining time."""

import pytest

from minicluster_hub.scheduling.base import JobView
from minicluster_hub.scheduling.planning.speedups import gain, remaining_s, speed


def job(*rates, **more):
    return JobView(1, "ada", 0.0, **{"min_replicas": 1, "max_replicas": 16, "rates": rates, **more})


def test_a_job_that_nobody_has_seen_follows_the_power_law():
    assert gain(job(), 2, 8) == pytest.approx(4**0.95)


def test_what_was_seen_is_given_back():
    seen = job((1, 10.0), (4, 25.0), (8, 30.0))
    assert [speed(seen, replicas) for replicas in (1, 4, 8)] == pytest.approx([10.0, 25.0, 30.0])


def test_between_two_sizes_it_rises_steadily():
    seen = job((1, 10.0), (4, 25.0))
    assert speed(seen, 2) == pytest.approx((10.0 * 25.0) ** 0.5)


def test_beyond_the_largest_it_goes_on_as_before_but_neither_falls_nor_flies():
    assert gain(job((1, 1.0), (2, 1.5)), 2, 4) == pytest.approx(1.5)
    assert gain(job((1, 1.0), (2, 0.5)), 2, 4) == 1.0
    assert gain(job((1, 1.0), (2, 3.0)), 2, 4) == pytest.approx(2**0.95)
    assert gain(job((2, 7.0)), 2, 4) == gain(job((2, 7.0)), 1, 2) == pytest.approx(2**0.95)


def test_a_rate_of_nought_tells_nothing():
    assert gain(job((1, 0.0)), 1, 2) == gain(job(), 1, 2)


def test_what_is_left_falls_with_the_speed_that_it_has():
    held = {"places": (("a", (0, 1)),), "since": 100.0, "remaining_s": 1000.0}
    seen = job((1, 1.0), (2, 1.5), **held)
    assert remaining_s(seen, 300.0) == pytest.approx(1000.0 - 200.0 * 1.5)
    assert remaining_s(seen, 9e9) == 0.0
    restarted = job((1, 1.0), (2, 1.5), consumed_slot_s=50.0, restart_cost_s=40.0, **held)
    assert remaining_s(restarted, 300.0) == pytest.approx(1000.0 - 160.0 * 1.5)
    assert remaining_s(job(remaining_s=7.0), 300.0) == 7.0
    assert remaining_s(job(**{**held, "remaining_s": None}), 300.0) is None
