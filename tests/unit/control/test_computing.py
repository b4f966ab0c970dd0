"""A computing thread leaves the interpreter to the event loop half of the time."""

from minicluster_hub.policy.simulations import Rests


class Machine:
    """A clock that advances only by work and by sleep."""

    def __init__(self):
        self.now = 100.0
        self.slept = []

    def sleep(self, time_s):
        self.slept.append(round(time_s, 6))
        self.now += time_s


def test_it_rests_for_as_long_as_it_worked_but_not_for_each_little_step():
    machine = Machine()
    rests = Rests(lambda: machine.now, machine.sleep)
    for worked_s in (0.0004, 0.0004, 0.0004, 0.01, 0.0009):
        machine.now += worked_s
        rests()
    assert machine.slept == [0.0012, 0.01]
