"""What each owner has had, old use counting less: in closed form between two moments, without ticks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log

from minicluster_hub.scheduling.base import Usage

_NOTHING = Usage()


@dataclass(slots=True)
class Meter:
    """at: when it was read last. used: of each owner, at that moment. `_slots`: what each holds since."""

    half_life_s: float
    at: float = 0.0
    used: dict[str, Usage] = field(default_factory=dict[str, Usage])
    _slots: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, owner: str, slots: int) -> None:
        """Have an owner hold so many more slots (less, if negative) from the moment last read."""
        self._slots[owner] = self._slots.get(owner, 0) + slots
        if owner not in self.used:
            self.used = {**self.used, owner: _NOTHING}  # What was read before stays as it was.

    def remember(self, owner: str, slots: int, began_at: float, ended_at: float | None) -> None:
        """Count what an owner held before the moment last read; what is still held is held on."""
        last = self.at if ended_at is None else min(ended_at, self.at)
        first = min(began_at, last)
        newest, oldest = (0.5 ** ((self.at - moment) / self.half_life_s) for moment in (last, first))
        had = self.half_life_s / log(2) * slots * (newest - oldest)
        used = self.used.get(owner, _NOTHING)
        self.used[owner] = replace(used, slot_s=used.slot_s + had)
        if ended_at is None:
            self.add(owner, slots)

    def read(self, now: float) -> Mapping[str, Usage]:
        """Return what each has used by now; `now` never goes back."""
        if now > self.at:
            kept = 0.5 ** ((now - self.at) / self.half_life_s)
            gained_s = self.half_life_s / log(2) * (1 - kept)
            self.used = {
                owner: replace(used, slot_s=used.slot_s * kept + self._slots.get(owner, 0) * gained_s)
                for owner, used in self.used.items()
            }
            self.at = now
        return self.used
