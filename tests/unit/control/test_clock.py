"""Setting the system clock does not count as elapsed time."""

import pytest

from minicluster_hub.support.clock import CATCH_UP, SteadyClock


class Machine:
    """A machine whose clock can be set."""

    def __init__(self):
        self.up_s = 50.0
        self.ahead_s = 1_000_000.0
        self.steady = SteadyClock(lambda: self.up_s + self.ahead_s, lambda: self.up_s)

    def after(self, seconds):
        self.up_s += seconds
        return self.steady()


def test_it_tells_the_time_of_day():
    machine = Machine()
    assert machine.steady() == 1_000_050
    assert machine.after(10) == 1_000_060


@pytest.mark.parametrize("jump_s", [3600, -3600, 86400 * 365, -86400 * 365])
def test_a_jump_is_not_a_duration(jump_s):
    machine = Machine()
    before = machine.after(1)
    machine.ahead_s += jump_s
    assert machine.steady() == before
    assert 10 * (1 - CATCH_UP) <= machine.after(10) - before <= 10 * (1 + CATCH_UP)


@pytest.mark.parametrize("jump_s", [60, -60])
def test_the_time_of_day_is_right_again_after_a_while(jump_s):
    machine = Machine()
    machine.ahead_s += jump_s
    times = [machine.after(1) for _ in range(700)]
    assert times == sorted(times), "a time came twice"
    assert times[-1] == pytest.approx(machine.up_s + machine.ahead_s)
    assert times[300] != pytest.approx(machine.up_s - 399 + machine.ahead_s), "it jumped"
