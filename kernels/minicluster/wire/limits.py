"""Limits of length and number for all that clients, tasks and data set agents send, in one place.

A name or an address that is too long is refused: cut, it would be another one. An error or a note that is too
long is cut, both by the sender and by the receiver: an error is never lost because it is long, not even that
of an agent of an earlier release.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BeforeValidator, Field

from minicluster.pickling.sizes import MOST_PARTS

NAME_CHARS = 255
"""Of users, nodes, folders and options: as much as databases and file systems accept."""
ADDRESS_CHARS = 320
VERSION_CHARS = 100
SENTENCE_CHARS = 2000
MESSAGE_CHARS = 4000
"""Of an exception's message."""
TRACEBACK_CHARS = 64 * 1024
NOTES = 32
"""Of one report: one for each rank, and some of the node."""
ENDINGS = 8
RANKS_OF_TASK = 1024
PROFILE_STEPS = 1000
PROFILE_RANKS = 64
NODES = 10_000
ADDRESSES_OF_NODE = 256
CHUNKS = 64
CHUNK_CHARS = 2 << 20
"""Of base64. Agents send 256 KiB at once."""
SMALL_FILE_CHARS = 4 << 20
FILES_OF_REPORT = 1000
PARTS_OF_JOB = MOST_PARTS
SNAPSHOTS_OF_REPORT = 64
DATA_SETS_OF_NODE = 10_000
PACKAGES = 10_000
"""Of a recipe, as far as it is read: those of earlier releases, too."""
RECIPE_PACKAGES = 2_000
"""Of a recipe that is published."""
RECIPE_BYTES = 512 << 10
LISTED_PACKAGES = 40
"""Of each image of a list."""
OPTION_CHARS = 4096
METRIC_CHARS = 200
"""Of the name of what a rank logs."""
FRAMES = 100
_LEFT_OUT_CHARS = 60
MORE_NOTES = "More notes were left out."


def shortened(text: str, most: int) -> str:
    """Return at most `most` characters of a text: its beginning, how many are left out, and its end."""
    if len(text) <= most:
        return text
    half = (most - _LEFT_OUT_CHARS) // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def few_notes(notes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first notes, and that there were more."""
    return notes if len(notes) <= NOTES else (*notes[: NOTES - 1], MORE_NOTES)


def cut(most: int) -> BeforeValidator:
    """Shorten a longer text, instead of refusing it."""
    return BeforeValidator(lambda value: shortened(value, most) if isinstance(value, str) else value)


def _listed(take: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> BeforeValidator:
    return BeforeValidator(
        lambda value: take(tuple(cast("list[Any]", value))) if isinstance(value, list | tuple) else value
    )


def first(most: int) -> BeforeValidator:
    """Take the first of a list, and leave out the rest."""
    return _listed(lambda value: value[:most])


def plain_address(text: str) -> str:
    """Return an IP address as it is usually written. Raises ValueError: a zone (`%`) may be any text."""
    if "%" in text:
        raise ValueError("want an IP address without a zone")
    return str(ip_address(text))


Name = Annotated[str, Field(max_length=NAME_CHARS)]
Address = Annotated[str, Field(max_length=ADDRESS_CHARS)]
IpAddress = Annotated[str, Field(max_length=NAME_CHARS), AfterValidator(plain_address)]
NodeText = Annotated[str, cut(NAME_CHARS), Field(max_length=NAME_CHARS)]
VersionText = Annotated[str, cut(VERSION_CHARS), Field(max_length=VERSION_CHARS)]
Sentence = Annotated[str, cut(SENTENCE_CHARS), Field(max_length=SENTENCE_CHARS)]
ErrorText = Annotated[str, cut(MESSAGE_CHARS), Field(max_length=MESSAGE_CHARS)]
Traceback = Annotated[str, cut(TRACEBACK_CHARS), Field(max_length=TRACEBACK_CHARS)]
Notes = Annotated[tuple[Sentence, ...], Field(max_length=NOTES), _listed(few_notes)]
Endings = Annotated[tuple[Sentence, ...], Field(max_length=ENDINGS), first(ENDINGS)]
Addresses = Annotated[tuple[Address, ...], Field(max_length=NODES), first(NODES)]
NodeAddresses = Annotated[
    tuple[IpAddress, ...], Field(max_length=ADDRESSES_OF_NODE), first(ADDRESSES_OF_NODE)
]
