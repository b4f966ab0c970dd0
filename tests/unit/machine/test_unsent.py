"""Readings wait for the job service, and none is lost or sent twice when a report fails."""

from __future__ import annotations

from minicluster.machine.unsent import UnsentReadings
from minicluster.wire import READINGS_OF_REPORT, MachineReading


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def reading(percent: float) -> MachineReading:
    return MachineReading(cpu_percent=percent, memory_bytes=1, memory_total_bytes=2)


def test_readings_are_sent_with_their_age_until_the_service_has_them() -> None:
    clock = Clock()
    unsent: UnsentReadings[MachineReading] = UnsentReadings(10, clock)
    unsent.add(reading(1))
    clock.now_s = 103.0
    assert [(one.cpu_percent, one.ago_s) for one in unsent.take()] == [(1, 3.0)]
    assert len(unsent.take()) == 1, "the report before was not answered"
    clock.now_s = 104.0
    unsent.add(reading(2))  # While the report is under way.
    unsent.accepted()
    assert [one.cpu_percent for one in unsent.take()] == [2]


def test_the_oldest_are_dropped_when_the_service_stays_away() -> None:
    unsent: UnsentReadings[MachineReading] = UnsentReadings(READINGS_OF_REPORT)
    for number in range(READINGS_OF_REPORT + 5):
        unsent.add(reading(number % 100))
    assert len(unsent.take()) == READINGS_OF_REPORT
    assert unsent.take()[0].cpu_percent == 5


def test_after_a_refusal_reports_go_without_readings_for_a_minute() -> None:
    clock = Clock()
    unsent: UnsentReadings[MachineReading] = UnsentReadings(10, clock)
    unsent.add(reading(1))
    unsent.take()
    unsent.refused()
    assert unsent.take() == ()
    clock.now_s += 61
    assert len(unsent.take()) == 1
