"""Which images jobs may run. When a job is accepted, its image's name is resolved to a digest for good."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from minicluster.wire import Image, ImageList, ImageState, Publishing
from minicluster_hub.engines.base import Engine, EngineError
from minicluster_hub.images.references import ImageReference
from minicluster_hub.images.registry import Registries, RegistryError
from minicluster_hub.jobs.records import ImageRecord
from minicluster_hub.store import Store, StoreUnavailable
from minicluster_hub.store.storage.images import ListedImage

AGAIN_S = 30.0
"""Pause in seconds before the next request to a registry that did not answer."""


class ImageNotAllowed(Exception):
    """A job names an image that this cluster does not run. offered: the names of the cluster's images."""

    def __init__(self, image: str, offered: Sequence[str] = (), why: str = "") -> None:
        super().__init__(f"image {image}: {why or 'this cluster does not run it'}")
        names = ", ".join(offered)
        listed = f", or give one of: {names}, or another one of %distribute images" if offered else ""
        self.hint = (
            f"Leave --image out for the cluster's default{listed}. If you gave no --image, your notebook "
            "server is older than the cluster's last upgrade: stop and start it on the hub's page; your "
            "files stay."
        )


class ImageOwn(Exception):
    """The image is in the settings, so its state cannot be changed."""

    def __init__(self, image: ImageRecord) -> None:
        super().__init__(f"the image {image.name} is one of the cluster's own")
        self.hint = "Change what the cluster offers: `up --notebook-image`, or SwarmEngine.images."


class Catalogue:
    """The images of the engine's settings, and those that users published.

    publishing: "ask": an admin must allow each image. "allow": allowed at once. "off": nobody can publish.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        registries: Registries,
        clock: Callable[[], float],
        log: logging.Logger,
        publishing: Publishing = "ask",
    ) -> None:
        self._store = store
        self._engine = engine
        self.registries = registries
        self._clock = clock
        self._log = log
        self.publishing: Publishing = publishing

    @property
    def can_publish(self) -> bool:
        return self.publishing != "off" and bool(self._own_images()) and self.registries.writable

    # --- for requests ---------------------------------------------------------------------------

    def resolve(self, named: str | None) -> str | None:
        """Return the reference by digest of the image that a job names; None for the engine's environment.

        Raises ImageNotAllowed.
        """
        own = self._own_images()
        if not own:
            if named is None:
                return None
            raise ImageNotAllowed(named, why="this cluster runs cells in its own environment")
        meant = named or own[0]
        # Called for every job. There may be many images with long recipes, so not all are read.
        reference = ImageReference.of(meant)
        candidates = self._store.images.called({meant, reference.name, reference.digest})
        found = [image for image in candidates if _is_called(image, meant)]
        if allowed := next((image for image in found if image.state is ImageState.ALLOWED), None):
            return meant if named in own and reference.digest else allowed.reference
        if named is None and not found:
            return None
        offered = [image.name for image in self._store.images.own() if image.state is ImageState.ALLOWED]
        raise ImageNotAllowed(meant, offered, _why(found))

    def name_of(self, reference: str | None) -> str:
        """Return the name of the image that a job ran in; "" if it has none."""
        if reference is None:
            return ""
        digest = ImageReference.of(reference).digest
        return next((image.name for image in self._store.images.called({digest})), "") if digest else ""

    async def listed(self, owner: str, *, everything: bool = False) -> ImageList:
        """Return the images that a user may run, and the user's own. everything: all images, for admins."""
        # In a thread, since the query reads long recipes.
        found = await asyncio.to_thread(self._store.images.listed, None if everything else owner)
        nodes = self.nodes()
        images = tuple(message(one, nodes.get(one.image.digest, ())) for one in found)
        return ImageList(images=images, publishing=self.publishing if self.can_publish else "off")

    async def whole(self, digest: str, owner: str, *, everything: bool = False) -> Image | None:
        """Return an image with all of its packages; None if `listed` does not have it."""
        record = await asyncio.to_thread(self._store.images.find, digest)
        if record is None or not (everything or record.state is ImageState.ALLOWED or record.owner == owner):
            return None
        return message(ListedImage.of(record, None), self.nodes().get(digest, ()))

    def nodes(self) -> dict[str, list[str]]:
        """Return, by digest, the nodes where an image has run a job or runs now."""
        found = {digest: set(nodes) for digest, nodes in self._store.images.nodes().items()}
        images = self._engine.task_images
        for reference, nodes in images.on_nodes().items() if images else ():
            found.setdefault(ImageReference.of(reference).digest, set()).update(nodes)
        return {digest: sorted(nodes) for digest, nodes in found.items()}

    # --- published ones ---------------------------------------------------------------------------

    def publish(self, image: ImageRecord) -> ImageRecord:
        """Add a new image. Raises ImageNameTaken."""
        entered = self._store.images.publish(image)
        self._log.info("image %s: %s published %s, %s", image.digest, image.owner, image.name, entered.state)
        return entered

    def change(self, digest: str, state: ImageState, by: str) -> Image | None:
        """Allow or retire an image and return it; None if there is none. Raises ImageOwn."""
        known = self._store.images.by_digest(digest)
        if known is not None:
            if not known.image.owner:
                raise ImageOwn(known.image)
            self._store.images.change(digest, state, self.now())
            self._log.info("image %s: %s by %s", digest, state, by)
        changed = self._store.images.by_digest(digest)
        return None if changed is None else message(changed, self.nodes().get(digest, ()))

    def now(self) -> float:
        return self._clock()

    # --- the cluster's own ----------------------------------------------------------------------

    async def run(self) -> None:
        """Add the engine's images with size and device; return when these are known for all images."""
        while True:
            try:
                missing = await self._enter_own()
                missing += await self._describe()
            except StoreUnavailable as error:
                missing = [str(error)]
            if not missing:
                return
            self._log.info("images: %s; asking again in %.0f s", "; ".join(missing), AGAIN_S)
            await asyncio.sleep(AGAIN_S)

    def _own_images(self) -> tuple[str, ...]:
        return self._engine.task_images.own() if self._engine.task_images else ()

    async def _enter_own(self) -> list[str]:
        """Add the engine's images. Return messages about those without a digest."""
        known = self._store.images.own()
        found: list[ImageRecord] = []
        missing: list[str] = []
        images = self._engine.task_images
        offered = [(text, images) for text in images.own()] if images else []
        for text, source in offered:
            reference = ImageReference.of(text)
            digest = reference.digest or _first_digest(known, reference)
            try:
                digest = digest or await source.digest(text)
            except EngineError as error:
                missing.append(f"{text} has no digest yet ({error})")
                continue
            if digest not in {image.digest for image in found}:
                found.append(_own(reference, digest, self._clock()))
        self._store.images.enter_own(found)
        return missing

    async def _describe(self) -> list[str]:
        missing: list[str] = []
        for record in self._store.images.all():
            if record.size_bytes or record.state is ImageState.RETIRED:
                continue
            try:
                reference = ImageReference.of(record.reference)
                if registry := self.registries.of(reference):
                    found = await registry.manifest(reference.path, reference.digest)
                    self._store.images.describe(record.digest, found.size_bytes, found.device)
            except RegistryError as error:
                missing.append(f"{record.name}: {error}")
        return missing


def message(listed: ListedImage, nodes: Iterable[str] = ()) -> Image:
    """Return an image as people see it."""
    record = listed.image
    return Image(
        digest=record.digest,
        name=record.name,
        reference=record.reference,
        state=record.state,
        owner=record.owner,
        description=record.description,
        device=record.device,  # pyright: ignore[reportArgumentType] - checked by the message
        size_bytes=record.size_bytes,
        base_digest=record.base_digest,
        packages=listed.packages,
        more_packages=listed.more_packages,
        nodes=tuple(nodes),
        created_at=record.created_at,
    )


def _is_called(image: ImageRecord, text: str) -> bool:
    """Return whether a text names an image: by its name, its digest, or a reference to it."""
    if text in (image.name, image.digest):
        return True
    reference = ImageReference.of(text)
    if reference.digest:
        return reference.digest == image.digest
    return _is_own(image, reference)


def _first_digest(known: Iterable[ImageRecord], reference: ImageReference) -> str:
    """Return the digest that a tag had when it was first offered; "" if it is new. A later digest of the tag
    is another image."""
    return next((image.digest for image in known if _is_own(image, reference)), "")


def _is_own(image: ImageRecord, reference: ImageReference) -> bool:
    """Return whether an image is the cluster's own with this name."""
    repository = ImageReference.of(image.reference).repository
    return not image.owner and (image.name, repository) == (reference.name, reference.repository)


def _own(reference: ImageReference, digest: str, now: float) -> ImageRecord:
    return ImageRecord(
        digest=digest,
        name=reference.name,
        reference=reference.at(digest),
        owner="",
        description="",
        device="",
        size_bytes=0,
        base_digest=None,
        recipe=None,
        state=ImageState.ALLOWED,
        created_at=now,
        changed_at=now,
    )


def _why(found: Sequence[ImageRecord]) -> str:
    states = {image.state for image in found}
    if ImageState.PENDING in states:
        return "it waits for an administrator to allow it"
    return "it was retired" if states else ""
