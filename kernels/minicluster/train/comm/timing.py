"""Times the steps of a training, while its gradients are averaged exactly."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from minicluster.train.comm.gradients import Bucket, GradFuture, Peers, WholeGradients, joined


def now(device: torch.device) -> float:
    """Return the time in seconds at which the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass
class TimedGradients:
    """Averages exactly, once all gradients are there: computing and communicating have times of their own.

    others: further ways to average, by name; each is tried on a copy of the gradients.
    """

    peers: Peers
    device: torch.device
    others: Mapping[str, Callable[[Sequence[Bucket]], None]]
    compute_s: list[float] = field(default_factory=list)
    exact_s: list[float] = field(default_factory=list)
    others_s: dict[str, list[float]] = field(default_factory=dict)
    _ended: float | None = None

    def __post_init__(self) -> None:
        self._whole = WholeGradients(self._average_all)

    def average(self, bucket: Bucket) -> GradFuture:
        return self._whole.average(bucket)

    def pause(self) -> None:
        """Do not count the time until the next step."""
        self._ended = None

    def _average_all(self, buckets: Sequence[Bucket]) -> None:
        began = now(self.device)
        if self._ended is not None:
            self.compute_s.append(began - self._ended)
        copies = [joined([bucket]) for bucket in buckets]
        began = now(self.device)
        for future in [self.peers.sum(bucket.buffer().div_(self.peers.count)) for bucket in buckets]:
            future.wait()
        self.exact_s.append(now(self.device) - began)
        for name, average in self.others.items():
            began = now(self.device)
            average(copies)
            self.others_s.setdefault(name, []).append(now(self.device) - began)
        self._ended = now(self.device)


class StepTimes:
    """The times between the ends of backward passes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last: float | None = None

    def ended(self) -> None:
        at = time.perf_counter()
        if self._last is not None:
            self.seconds.append(at - self._last)
        self._last = at

    def pause(self) -> None:
        """Do not count the time until the next step."""
        self._last = None

    def restart(self) -> None:
        self.seconds, self._last = [], None


def typical(seconds: Sequence[float]) -> float:
    """Return the median; the first value is left out if there are others, since it warms things up."""
    return statistics.median(seconds[1:] or seconds)
