"""What is said of where the time of a training's steps goes."""

from __future__ import annotations

import pytest

from minicluster_hub.diagnosis.speed import RECENT_S, StepWindow, speed_report


def window(data: float = 0.0, communication: float = 0.0, at: float = 1000.0) -> StepWindow:
    return StepWindow(at, 10, 1.0, data, communication)


@pytest.mark.parametrize(
    ("data", "communication", "words"),
    [
        (0.5, 0.2, "50% of the time is waiting for data: give the DataLoader num_workers"),
        (0.1, 0.6, "60% of the time is waiting for the network: accumulate gradients"),
        (0.1, 0.1, "80% of the time is the cell's own work"),
    ],
)
def test_what_costs_most_is_named(data: float, communication: float, words: str) -> None:
    report = speed_report({rank: [window(data, communication)] for rank in range(3)})
    assert report.sentence.startswith(words)
    assert report.straggler is None


def test_a_slow_rank_is_the_one_that_does_not_wait() -> None:
    report = speed_report({0: [window(communication=0.5)], 1: [window(communication=0.5)], 2: [window()]})
    assert report.straggler == 2
    assert "wait for rank 2, 50 ms in each step of 100 ms: it computes more slowly" in report.sentence


def test_ranks_that_are_gone_are_not_shown() -> None:
    report = speed_report({0: [window(at=1000.0)], 1: [window(at=1000.0 - RECENT_S - 1)], 2: []})
    assert [rank.rank for rank in report.ranks] == [0]


def test_nothing_is_said_of_nothing() -> None:
    assert speed_report({}).sentence == ""
    assert speed_report({0: [StepWindow(1.0, 0, 0.0, 0.0, 0.0)]}).ranks == ()


def test_shares_are_shares_whatever_a_rank_sends() -> None:
    (rank,) = speed_report({0: [StepWindow(1.0, 1, 1.0, 5.0, 5.0)]}).ranks
    assert (rank.data, rank.communication, rank.compute) == (1.0, 0.0, 0.0)
