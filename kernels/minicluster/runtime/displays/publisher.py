"""Publishes a rank's displays: writes the content to a file for the agent, and its id to the output."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from minicluster.runtime.displays.content import TEXT, DisplayContent
from minicluster.wire import Display
from minicluster.wire.streams import CLEAR, CLEAR_NEXT, changed, shown_here

ITEM_BYTES = 2_000_000
LINE_BYTES = 4_000_000
"""Limit for all MIME data of one object: less than the service's limit for a line."""
_JOB_BYTES = 24_000_000
_RANK_BYTES = (1_000_000, 8_000_000)


def rank_bytes(world_size: int) -> int:
    """Return a rank's limit: its share of the job's limit."""
    least, most = _RANK_BYTES
    return max(least, min(most, _JOB_BYTES // world_size))


@dataclass
class ChangeThrottle:
    """Limits updates of a display: to five per second at first, later to one per 1 % of its age.

    So a table that is redrawn in each step of a long training neither floods the panel nor reaches the limit.
    """

    began_at: float
    changed_at: float

    def wait_s(self, now: float) -> float:
        return self.changed_at + max(0.2, 0.01 * (now - self.began_at)) - now


# Limits for a rank's displays: they must fit into a panel, a kernel's memory and a saved notebook.


_OWN_ID = re.compile(r"[0-9a-f]{8,64}")
_TEXT_CHARACTERS = 10_000
_SAVE_IT = "save it as a file in mc.output(), and it comes back"


class Publisher:
    """One rank's publisher. Forked children share it, so each line is written in one atomic write."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._throttles: dict[str, ChangeThrottle] = {}
        self._held: dict[str, DisplayContent] = {}
        self._full = False

    def show(self, content: DisplayContent, display_id: str) -> None:
        """Display content below the output so far."""
        ident = wire_id(display_id)
        now = time.monotonic()
        self._throttles.setdefault(ident, ChangeThrottle(now, now))
        note = self._write(ident, content)
        text = content.text[:_TEXT_CHARACTERS].rstrip("\n")
        _print(shown_here(ident, f"{text}\n{note}" if note else text))

    def change(self, content: DisplayContent, display_id: str) -> None:
        """Replace the content displayed under this id, not more often than its throttle allows."""
        ident = wire_id(display_id)
        throttle = self._throttles.get(ident)
        if throttle is None:
            return
        wait_s = throttle.wait_s(time.monotonic())
        if wait_s <= 0:
            self._change(ident, content)
            return
        first = ident not in self._held
        self._held[ident] = content
        if first:
            later = threading.Timer(wait_s, self._change_held, [ident])
            later.daemon = True
            later.start()

    def clear(self, *, wait: bool) -> None:
        """Clear the output so far: now or, with `wait`, before the next output."""
        _print(CLEAR_NEXT if wait else CLEAR)

    def finish(self) -> None:
        """Show the last update of each display that was throttled."""
        for ident in list(self._held):
            self._change_held(ident)

    def _change_held(self, ident: str) -> None:
        content = self._held.pop(ident, None)
        if content is not None:
            self._change(ident, content)

    def _change(self, ident: str, content: DisplayContent) -> None:
        self._held.pop(ident, None)
        self._throttles[ident].changed_at = time.monotonic()
        note = self._write(ident, content)
        _print(changed(ident) + (f"{note}\n" if note else ""))

    def _write(self, ident: str, content: DisplayContent) -> str:
        """Write a line for the agent; return a note about content that is not shown."""
        data = {mime: shown for mime, shown in content.data.items() if len(shown) <= ITEM_BYTES}
        large = [mime for mime in content.data if mime not in data]
        largest = max(map(len, content.data.values()), default=0)
        note = _too_large(large, largest, ITEM_BYTES) if large else ""
        if not data.keys() - {TEXT} and large:
            return note
        display = Display(id=ident, data=data, width=content.width, height=content.height)
        line = display.model_dump_json().encode() + b"\n"
        fits = len(line) <= LINE_BYTES
        more = self._append(line) if fits else _too_large([*data], len(line), LINE_BYTES)
        return " ".join(filter(None, [note, more]))

    def _append(self, line: bytes) -> str:
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                if os.fstat(file).st_size + len(line) > self._limit_bytes:
                    return self._note_full()
                os.write(file, line)
            finally:
                os.close(file)
        except OSError as error:
            return f"[Not shown: {error.strerror}]"
        return ""

    def _note_full(self) -> str:
        if self._full:
            return ""
        self._full = True
        limit = f"{self._limit_bytes / 1e6:.0f} MB"
        return f"[Not shown, nor what this rank displays from here on: its {limit} are full; {_SAVE_IT}]"


def wire_id(display_id: str) -> str:
    """Return a valid id for the agent: a hash, if the user chose an id of another form."""
    known = _OWN_ID.fullmatch(display_id)
    return display_id if known else hashlib.sha256(display_id.encode()).hexdigest()


def _too_large(mimes: list[str], size: int, limit_bytes: int) -> str:
    limit = f"{limit_bytes / 1e6:.0f} MB"
    return f"[{', '.join(mimes)} of {size / 1e6:.1f} MB is not shown: {limit} is the limit; {_SAVE_IT}]"


def _print(text: str) -> None:
    """Write to the rank's output, even if the cell has replaced sys.stdout."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    data = text.encode(errors="replace")
    while data:
        data = data[os.write(1, data) :]
