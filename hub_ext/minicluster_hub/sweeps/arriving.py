"""The metric's values of running trials, as they arrive with the ranks' records."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

from pydantic import ValidationError

from minicluster.wire import Record
from minicluster.wire.sweeps.trials import TrialRef

MOST_STEPS = 2000
"""Of one trial: later steps are not compared, and only the last value counts."""


@dataclass
class TrialValues:
    """What one trial's ranks logged. new: steps and values that were not taken yet; last: the newest.

    rank: the lowest one that logs the metric, whose values count. counted: records without a step so far.
    """

    trial: TrialRef
    new: dict[float, float] = field(default_factory=dict)
    last: tuple[float | None, float] | None = None
    rank: int | None = None
    counted: int = 0
    taken: int = 0

    def receive(self, data: bytes) -> bool:
        """Take a piece of a stream of records; return whether there is something new."""
        mark = json.dumps(self.trial.metric).encode()
        found = False
        for line in data.splitlines():
            # An escaped name is written in several ways: then each line is read.
            if mark in line or b"\\" in mark or not mark.isascii():
                found |= self._take(line)
        return found

    def take(self) -> list[tuple[float, float]]:
        """Return the values that are to be compared, and forget them."""
        values = list(self.new.items())[: max(0, MOST_STEPS - self.taken)]
        self.taken += len(values)
        self.new.clear()
        return values

    def _take(self, line: bytes) -> bool:
        try:
            record = Record.model_validate_json(line)
        except ValidationError:
            return False
        value = record.values.get(self.trial.metric)
        if record.kind != "log" or value is None or (self.rank is not None and record.rank > self.rank):
            return False
        self.rank = record.rank
        step = record.step
        if step is None or not math.isfinite(step):
            step, self.counted = float(self.counted), self.counted + 1
        self.last = step, value
        self.new[float(math.floor(step))] = value
        return True
