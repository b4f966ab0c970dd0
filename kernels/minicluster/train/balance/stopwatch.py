"""Adds up how long a device computes, without the times in which its rank waits for others."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Mark:
    """A moment on the device's clock: on a GPU, when it gets there, which may be long after it was told."""

    at: float
    event: torch.cuda.Event | None

    @classmethod
    def now(cls, device: torch.device) -> Mark:
        event = None
        if device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return cls(time.perf_counter(), event)

    def seconds_to(self, later: Mark) -> float:
        if self.event is None or later.event is None:
            return later.at - self.at
        self.event.synchronize()
        later.event.synchronize()
        return self.event.elapsed_time(later.event) / 1000


class Stopwatch:
    """Runs between start() and stop(); both may be called again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._began: Mark | None = None
        self._spans: list[tuple[Mark, Mark]] = []

    @property
    def running(self) -> bool:
        return self._began is not None

    def start(self) -> None:
        if self._began is None:
            self._began = Mark.now(self._device)

    def stop(self) -> None:
        if self._began is not None:
            self._spans.append((self._began, Mark.now(self._device)))
            self._began = None

    def lap(self) -> Lap:
        """Stop, return what was added up, and begin from 0."""
        self.stop()
        spans, self._spans = self._spans, []
        return Lap(spans)


@dataclass(frozen=True)
class Lap:
    """Some spans of time. To ask for their seconds waits for the device."""

    spans: list[tuple[Mark, Mark]]

    @property
    def seconds(self) -> float:
        return sum(first.seconds_to(last) for first, last in self.spans)
