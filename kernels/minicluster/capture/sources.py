"""The text of the notebook's cells for tracebacks: where a function that travelled was written.

A function carries the name of its file and its line numbers, not its text. Python shows the text of what
is in `linecache`; so that goes along, under the same names.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

MOST_CHARACTERS = 1_000_000
"""Of all sources that go with one cell. What is more is left out: its tracebacks show line numbers only."""


@dataclass(frozen=True)
class Source:
    """shown_as: what a traceback calls the file, "Cell In[3]" for a cell."""

    shown_as: str
    text: str


def sources_of(filenames: Iterable[str], shown_as: Callable[[str], str]) -> dict[str, Source]:
    """Return the text of these files, as far as this process knows it, the short ones first."""
    texts = {name: "".join(linecache.getlines(name)) for name in filenames}
    found: dict[str, Source] = {}
    room = MOST_CHARACTERS
    for name, text in sorted(texts.items(), key=lambda item: (len(item[1]), item[0])):
        room -= len(text)
        if text and room >= 0:
            found[name] = Source(shown_as(name), text)
    return found


def remember(sources: Mapping[str, Source]) -> None:
    """Have tracebacks of this process show these texts."""
    for name, source in sources.items():
        # Without a time it is taken as it is, and not looked for on the disk.
        lines = source.text.splitlines(keepends=True)
        linecache.cache[name] = (len(source.text), None, lines, name)
