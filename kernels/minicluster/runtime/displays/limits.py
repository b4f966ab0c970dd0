"""How much a rank may display: a panel, a kernel's memory and a saved notebook have to hold it."""

from __future__ import annotations

from dataclasses import dataclass

ITEM_BYTES = 2_000_000
LINE_BYTES = 4_000_000
"""Of all that stands for one object together: less than the service reads at once."""
_JOB_BYTES = 24_000_000
_RANK_BYTES = (1_000_000, 8_000_000)


def rank_bytes(world_size: int) -> int:
    """Return the limit of one rank: its part of the job's."""
    least, most = _RANK_BYTES
    return max(least, min(most, _JOB_BYTES // world_size))


@dataclass
class Pace:
    """When something displayed may change again: five times a second at first, then each 1 % of the time.

    So that a table that is drawn anew in each step of a day neither floods nor comes to the limit.
    """

    began_at: float
    changed_at: float

    def wait_s(self, now: float) -> float:
        return self.changed_at + max(0.2, 0.01 * (now - self.began_at)) - now
