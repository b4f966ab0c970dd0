"""How far a reader of a job's events has come: the id of each server-sent event."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from minicluster_hub.web.errors import ApiError

_PART = re.compile(r"((?:rank|display|agent)-\d{1,5}|records)=(\d{1,15})")
_HEAD = re.compile(r"E(\d{1,15});A(\d{1,9})")


@dataclass
class Cursor:
    """event: the newest line of the job's story that was seen. attempt: whose streams `offsets`
    speak of (its number; 0: none yet). offsets: the next byte of each stream."""

    event: int = 0
    attempt: int = 0
    offsets: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read an id that the service gave out; "" is the beginning. Raises ApiError (400)."""
        if not text:
            return cls()
        head, *parts = text.split(";")
        first, found = _HEAD.fullmatch(head + ";" + parts[0] if parts else ""), []
        if first is not None:
            found = [_PART.fullmatch(part) for part in parts[1:]]
        if first is None or not all(found):
            raise ApiError(
                400, "bad_cursor", f"{text[:80]!r} is no event id of a job", "leave it out to start anew"
            )
        offsets = {match[1]: int(match[2]) for match in found if match}
        return cls(int(first[1]), int(first[2]), offsets)

    def __str__(self) -> str:
        parts = (f"{stream}={offset}" for stream, offset in sorted(self.offsets.items()))
        return ";".join([f"E{self.event}", f"A{self.attempt}", *parts])

    def next_attempt(self, attempt: int) -> None:
        """Go over to the streams of a newer attempt."""
        self.attempt, self.offsets = attempt, {}
