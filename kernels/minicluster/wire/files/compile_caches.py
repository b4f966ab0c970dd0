"""What torch.compile made for an owner's ranks: an agent takes it from the service, and adds to it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from minicluster.wire.base import Message, Sha256
from minicluster.wire.jobs import BlobInfo

CACHE_BYTES = 256_000_000
"""The most that a cache may have, as its pieces are sent."""
MOST_ENTRIES = 50_000
"""Of compiled things that one task may add at once."""
EntryDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class CompileCache(Message):
    """GET api/tasks/compile-cache?environment=: the pieces of a cache, the oldest first.

    environment: a digest of all that compiled code depends on, apart from owner and image, which the
    service knows: torch, Python, the kinds of CPU and GPU.
    """

    pieces: tuple[BlobInfo, ...] = ()


class CompiledEntries(Message):
    """POST api/tasks/compile-cache: what a task could add to a cache; the answer: what it shall send.

    entries: digests of names. Of several tasks that compiled the same, only the first shall send it.
    damaged: pieces that the task could not read; they are removed.
    """

    environment: Sha256
    entries: tuple[EntryDigest, ...] = Field(max_length=MOST_ENTRIES)
    damaged: tuple[Sha256, ...] = Field(default=(), max_length=1000)
