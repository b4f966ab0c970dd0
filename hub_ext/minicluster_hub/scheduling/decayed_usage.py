"""Each owner's usage with exponential decay, computed in closed form between two moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log

from minicluster_hub.scheduling.base import Usage

_NOTHING = Usage()


@dataclass(slots=True)
class Meter:
    """at: when it was last read. used: by owner, at that moment. `_slots`: slots that each has held since."""

    half_life_s: float
    at: float = 0.0
    used: dict[str, Usage] = field(default_factory=dict[str, Usage])
    _slots: dict[str, float] = field(default_factory=dict[str, float])

    def add(self, owner: str, slots: float) -> None:
        """Add slots to those that an owner holds from the last read on; a negative number removes some."""
        self._slots[owner] = self._slots.get(owner, 0) + slots
        if owner not in self.used:
            self.used = {**self.used, owner: _NOTHING}  # A copy: results of earlier reads stay as they were.

    def remember(self, owner: str, slots: float, began_at: float, ended_at: float | None) -> None:
        """Count past use, up to the last read. ended_at: None: the slots are still held."""
        last = self.at if ended_at is None else min(ended_at, self.at)
        first = min(began_at, last)
        newest, oldest = (0.5 ** ((self.at - moment) / self.half_life_s) for moment in (last, first))
        had = self.half_life_s / log(2) * slots * (newest - oldest)
        used = self.used.get(owner, _NOTHING)
        self.used[owner] = replace(used, slot_s=used.slot_s + had)
        if ended_at is None:
            self.add(owner, slots)

    def read(self, now: float) -> Mapping[str, Usage]:
        """Return each owner's usage; `now` must not be before the last read."""
        if now > self.at:
            kept = 0.5 ** ((now - self.at) / self.half_life_s)
            gained_s = self.half_life_s / log(2) * (1 - kept)
            self.used = {
                owner: replace(used, slot_s=used.slot_s * kept + self._slots.get(owner, 0) * gained_s)
                for owner, used in self.used.items()
            }
            self.at = now
        return self.used
