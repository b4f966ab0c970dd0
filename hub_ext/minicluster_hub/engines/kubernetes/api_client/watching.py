"""What the API server has of one kind of object: listed once, then watched. Nothing is polled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from minicluster_hub.engines.kubernetes.api_client.client import (
    LONGEST_PAUSE_S,
    ApiError,
    ApiExpired,
    Document,
    KubernetesApi,
)

T = TypeVar("T")
_AGAIN_S = 0.1
"""A server that ends each watch at once is asked again after this; one that fails, later and later."""


class Watched(Generic[T]):
    """The newest state of all objects of a kind that have these labels, by their names.

    read: what is stored of an object. on_event: called with the name after each event of an object, and
    whether what is stored has changed; the name is "" after all were listed.
    """

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        labels: str,
        read: Callable[[Document], T],
        on_event: Callable[[str, bool], None],
        log: logging.Logger,
    ) -> None:
        self.objects: dict[str, T] = {}
        self._api = api
        self._path = path
        self._labels = labels
        self._read = read
        self._on_event = on_event
        self._log = log
        self._version = ""
        self._put: dict[str, str] = {}
        """The versions of objects that were created here and not yet seen in the watch."""
        self._away = False
        """Whether the server did not answer when it was last asked."""
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """List the objects, then follow them. Raises ApiError; it may then be called again."""
        if self._following is None:
            await self._list()
            self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    def put(self, document: Document) -> None:
        """Store an object as the server answered its creation, unless the watch is further already."""
        version, name = str(document["metadata"]["resourceVersion"]), str(document["metadata"]["name"])
        if _newer(version, self._version):
            self._put[name] = version
            self._store("ADDED", document)

    # --- following ----------------------------------------------------------------------------

    async def _list(self) -> None:
        listing = await self._api.list_all(self._path, self._labels)
        self._version, before = listing.version, self.objects
        self._put = {name: made for name, made in self._put.items() if _newer(made, listing.version)}
        listed = {str(one["metadata"]["name"]): self._read(one) for one in listing.items}
        self.objects = {name: before[name] for name in self._put if name in before} | listed
        self._on_event("", before != self.objects)

    async def _follow(self) -> None:
        pause_s = _AGAIN_S
        while True:
            pause_s = _AGAIN_S if await self._try_to_watch() else min(2 * pause_s, LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _try_to_watch(self) -> bool:
        """Watch until the server ends it; return whether it did so by itself."""
        try:
            await self._watch()
            self._away = False
            return True
        except ApiExpired as error:
            self._log.info("listing %s anew: %s", self._path, error)
            self._version = ""
        except ApiError as error:
            if not self._away:
                self._log.warning("no news of %s, the last state stays: %s", self._path, error)
            self._away = True
        except Exception:
            # Whatever it was, what was missed is found by listing everything.
            self._log.exception("an event of %s was not understood; listing it anew", self._path)
            self._version = ""
        return False

    async def _watch(self) -> None:
        if not self._version:
            await self._list()
        async for kind, document in self._api.watch(self._path, self._labels, self._version):
            self._version = str(document["metadata"]["resourceVersion"])
            if kind != "BOOKMARK":
                self._put.pop(str(document["metadata"]["name"]), None)
                self._store(kind, document)

    def _store(self, kind: str, document: Document) -> None:
        name = str(document["metadata"]["name"])
        before = self.objects.get(name)
        if kind == "DELETED":
            self.objects.pop(name, None)
        else:
            self.objects[name] = self._read(document)
        self._on_event(name, before != self.objects.get(name))


def _newer(version: str, than: str) -> bool:
    """Tell whether a version is newer. They are numbers of one counter, on every server known."""
    return not (version.isdigit() and than.isdigit()) or int(version) > int(than)
