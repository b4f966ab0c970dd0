"""Where the time of a training's steps goes, which rank the others wait for, and what to try. Pure.

Ranks train in lockstep: all steps take the same time. A slow rank is the one that waits least for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minicluster.wire import RankSpeed, SpeedReport

RECENT_S = 30.0
"""Ranks whose newest record is older than the newest of all by more are not shown."""
_DATA_SHARE = 0.2
_COMMUNICATION_SHARE = 0.3
_STRAGGLER_SHARE = 0.15
"""A rank is a straggler if its own work takes longer than the median's by this share of a step."""


@dataclass(frozen=True)
class StepWindow:
    """One record of a rank. at: seconds since the epoch; the others as in StepTimes."""

    at: float
    steps: int
    seconds: float
    data: float
    communication: float


def speed_report(windows: Mapping[int, Sequence[StepWindow]]) -> SpeedReport:
    """Return the shares of each rank's time, the straggler, and a sentence on what to try."""
    newest = max((found[-1].at for found in windows.values() if found), default=None)
    if newest is None:
        return SpeedReport()
    recent = {rank: [one for one in found if newest - one.at <= RECENT_S] for rank, found in windows.items()}
    shown = (_rank_speed(rank, found) for rank, found in sorted(recent.items()))
    ranks = tuple(rank for rank in shown if rank is not None)
    straggler = _straggler(ranks)
    sentence = _sentence(ranks, straggler)
    return SpeedReport(ranks=ranks, straggler=straggler, sentence=sentence, at=newest)


def _rank_speed(rank: int, windows: Sequence[StepWindow]) -> RankSpeed | None:
    seconds, steps = sum(one.seconds for one in windows), sum(one.steps for one in windows)
    if not seconds or not steps:
        return None
    data = min(1.0, sum(one.data for one in windows) / seconds)
    communication = min(1.0 - data, sum(one.communication for one in windows) / seconds)
    return RankSpeed(
        rank=rank,
        step_s=seconds / steps,
        data=data,
        communication=communication,
        compute=max(0.0, 1.0 - data - communication),
    )


def _own_s(rank: RankSpeed) -> float:
    """Return the seconds of a step in which a rank does not wait for others."""
    return rank.step_s * (1.0 - rank.communication)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def _straggler(ranks: Sequence[RankSpeed]) -> int | None:
    if len(ranks) < 2:
        return None
    slowest = max(ranks, key=_own_s)
    behind_s = _own_s(slowest) - _median([_own_s(rank) for rank in ranks])
    return slowest.rank if behind_s > _STRAGGLER_SHARE * _median([rank.step_s for rank in ranks]) else None


def _sentence(ranks: Sequence[RankSpeed], straggler: int | None) -> str:
    if not ranks:
        return ""
    slow = next((rank for rank in ranks if rank.rank == straggler), None)
    if slow is not None:
        return _about_straggler(slow, ranks)
    data, communication = (
        _median([rank.data for rank in ranks]),
        _median([rank.communication for rank in ranks]),
    )
    if data >= _DATA_SHARE and data >= communication:
        return (
            f"{data:.0%} of the time is waiting for data: give the DataLoader num_workers=2 or more and "
            "pin_memory=True, or decode and resize the samples once, before the training."
        )
    if communication >= _COMMUNICATION_SHARE:
        return (
            f"{communication:.0%} of the time is waiting for the network: accumulate gradients over several "
            "batches with model.no_sync(), or make the batches larger."
        )
    return (
        f"{1 - data - communication:.0%} of the time is the cell's own work: neither data nor network hold "
        "it up. A profile tells what is computed then, and what is idle."
    )


def _about_straggler(slow: RankSpeed, ranks: Sequence[RankSpeed]) -> str:
    others = [rank for rank in ranks if rank.rank != slow.rank]
    lost_s = _own_s(slow) - _median([_own_s(rank) for rank in others])
    lost, step = f"{lost_s * 1e3:.0f} ms", f"{slow.step_s * 1e3:.0f} ms"
    wait = f"The others wait for rank {slow.rank}, {lost} in each step of {step}"
    if slow.data * slow.step_s - _median([rank.data * rank.step_s for rank in others]) > lost_s / 2:
        return f"{wait}: it waits for its data. Give its node faster storage, or the DataLoader more workers."
    return f"{wait}: it computes more slowly. Look at what else runs on its node, or give it smaller batches."
