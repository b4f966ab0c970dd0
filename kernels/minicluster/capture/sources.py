"""The text of the notebook's cells, so that tracebacks show the lines of functions that were sent.

A pickled function has the name of its file and its line numbers, but not its text. Tracebacks read the text
from `linecache`. So the texts are sent along, under the same file names.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

MOST_CHARACTERS = 1_000_000
"""Limit for all sources that are sent with one cell. Tracebacks of the others show line numbers only."""


@dataclass(frozen=True)
class Source:
    """A cell's text. shown_as: what tracebacks call its file, "Cell In[3]" for example."""

    shown_as: str
    text: str


def sources_of(filenames: Iterable[str], shown_as: Callable[[str], str]) -> dict[str, Source]:
    """Return the texts of these files that this process knows, the shortest ones first."""
    texts = {name: "".join(linecache.getlines(name)) for name in filenames}
    found: dict[str, Source] = {}
    room = MOST_CHARACTERS
    for name, text in sorted(texts.items(), key=lambda item: (len(item[1]), item[0])):
        room -= len(text)
        if text and room >= 0:
            found[name] = Source(shown_as(name), text)
    return found


def register_sources(sources: Mapping[str, Source]) -> None:
    """Let tracebacks of this process show these texts."""
    for name, source in sources.items():
        # With the time None, linecache does not look for the file on the disk.
        lines = source.text.splitlines(keepends=True)
        linecache.cache[name] = (len(source.text), None, lines, name)
