"""Publishes images: checks a job's layer, pushes it to the registry, and adds the image to the catalogue.

Progress is only in memory. After a restart the client requests the publication again, and the push skips
blobs that the registry already has.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from minicluster.wire import RECIPE_FILE, ImageState, Publication, PublishImage, Recipe
from minicluster.wire.limits import RECIPE_BYTES, RECIPE_PACKAGES
from minicluster_hub.images.catalogue import Catalogue, message
from minicluster_hub.images.layer import LayerRefused, check_layer
from minicluster_hub.images.pushing import DerivedImage, push
from minicluster_hub.images.references import ImageReference
from minicluster_hub.images.registry import RegistryError
from minicluster_hub.jobs.records import ImageRecord, JobRecord
from minicluster_hub.store import ImageNameTaken
from minicluster_hub.store.storage.images import ListedImage

_MAX_SHOWN = 100
_MAX_UNDER_WAY = 50
_MAX_OF_OWNER = 5
_AT_ONCE = 4
"""Most pushes at once, each of another owner. A registry that does not answer delays only these."""
_THREADS = 2
"""Most layers that are checked at once: each takes a core for minutes."""
_Key = tuple[int, str]
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class PublishingFiles:
    """The files of a publishing job."""

    layer: Path
    recipe: Path


class PublishingBusy(Exception):
    """Too many publications run already; the message is one sentence."""


class RecipeTooLong(Exception):
    """An image has more packages than allowed; the message is one sentence."""


class Publications:
    """Runs one push for each job and name, and for each owner one at a time.

    Layers are checked in own threads: the service's other requests need the event loop's threads.
    """

    def __init__(self, catalogue: Catalogue, limit_bytes: int) -> None:
        self._catalogue = catalogue
        self._limit_bytes = limit_bytes
        self._progress: dict[_Key, Publication] = {}
        self._work: dict[_Key, asyncio.Task[None]] = {}
        self._of_owner: Counter[str] = Counter()
        self._locks: dict[str, asyncio.Lock] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="publishing")

    def start(self, job: JobRecord, request: PublishImage, files: PublishingFiles) -> Publication:
        """Start to publish a job's files, or return the progress. A failure is returned only once.

        Raises PublishingBusy.
        """
        key = job.id, request.name
        if key not in self._progress:
            self._make_room(job.owner)
            self._of_owner[job.owner] += 1
            self._set_progress(job, request, doing="waiting for its turn")
            self._work[key] = asyncio.create_task(self._publish(job, request, files))
        progress = self._progress[key]
        if progress.problem:
            del self._progress[key]
        return progress

    def is_requested(self, job: JobRecord, request: PublishImage) -> bool:
        """Return whether this publication was requested before."""
        return (job.id, request.name) in self._progress

    async def close(self) -> None:
        for work in self._work.values():
            work.cancel()
        await asyncio.gather(*self._work.values(), return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _make_room(self, owner: str) -> None:
        """Forget the oldest ended publications. Raises PublishingBusy."""
        if self._of_owner[owner] >= _MAX_OF_OWNER:
            raise PublishingBusy(f"{_MAX_OF_OWNER} of your images are being published already")
        if len(self._work) >= _MAX_UNDER_WAY:
            raise PublishingBusy(f"{_MAX_UNDER_WAY} images are being published already")
        over = [key for key in self._progress if key not in self._work]
        for key in over[: max(0, len(self._progress) - _MAX_SHOWN + 1)]:
            del self._progress[key]

    @asynccontextmanager
    async def _turn(self, owner: str) -> AsyncIterator[None]:
        """Take the owner's lock before the semaphore, so that each owner has at most one of its slots."""
        async with self._locks.setdefault(owner, asyncio.Lock()), self._at_once:
            yield

    def _forget_work(self, job: JobRecord, request: PublishImage) -> None:
        self._work.pop((job.id, request.name), None)
        self._of_owner[job.owner] -= 1
        if not self._of_owner[job.owner]:
            del self._of_owner[job.owner]
            self._locks.pop(job.owner, None)

    async def _in_thread(self, work: Callable[..., _Result], *arguments: object) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _set_progress(self, job: JobRecord, request: PublishImage, **more: object) -> None:
        progress = {"job_id": job.id, "name": request.name, **more}
        self._progress[job.id, request.name] = Publication.model_validate(progress)

    async def _publish(self, job: JobRecord, request: PublishImage, files: PublishingFiles) -> None:
        try:
            async with self._turn(job.owner):
                self._set_progress(job, request, doing="checking the layer")
                image = await self._make(job, request, files)
            self._set_progress(job, request, doing="done", image=message(ListedImage.of(image)))
        except (LayerRefused, RecipeTooLong, RegistryError, ImageNameTaken) as error:
            self._set_progress(job, request, problem=str(error), hint=_HINTS[type(error)])
        except Exception:
            self._set_progress(
                job, request, problem="the job service failed", hint="Try again. Its log has the error."
            )
            raise
        finally:
            self._forget_work(job, request)

    async def _make(self, job: JobRecord, request: PublishImage, files: PublishingFiles) -> ImageRecord:
        recipe = await self._in_thread(_recipe, files.recipe)
        await self._in_thread(check_layer, files.layer, recipe, self._limit_bytes)
        owner = re.sub(r"[^a-z0-9]+", "-", job.owner.lower()).strip("-") or "user"
        image = DerivedImage(
            base=ImageReference.of(job.spec.image or ""),
            layer=files.layer,
            recipe=recipe,
            repository=f"minicluster/published/{owner}/{request.name}",
            tag=recipe.layer_sha256[:12],
        )

        def report(doing: str, sent: int, total: int) -> None:
            self._set_progress(job, request, doing=doing, sent_bytes=sent, total_bytes=total)

        registries = self._catalogue.registries
        pushed = await push(image, registries, report)
        now = self._catalogue.now()
        record = ImageRecord(
            digest=pushed.digest,
            name=request.name,
            reference=f"{registries.name}/{image.repository}@{pushed.digest}",
            owner=job.owner,
            description=request.description,
            device=pushed.device,
            size_bytes=pushed.size_bytes,
            base_digest=image.base.digest,
            recipe=recipe,
            state=ImageState.ALLOWED if self._catalogue.publishing == "allow" else ImageState.PENDING,
            created_at=now,
            changed_at=now,
        )
        return self._catalogue.publish(record)


_HINTS: dict[type[Exception], str] = {
    LayerRefused: "Publish with %distribute publish: it makes layers that are accepted.",
    RecipeTooLong: "%pip uninstall packages that the image does not need, then publish it again.",
    RegistryError: "Try again: the registry has what was sent. If that fails, an admin can run `doctor`.",
    ImageNameTaken: "Choose another name.",
}


def _recipe(path: Path) -> Recipe:
    """Raises RecipeTooLong, LayerRefused."""
    size_bytes = path.stat().st_size
    if size_bytes > RECIPE_BYTES:
        raise RecipeTooLong(
            f"{RECIPE_FILE}, the list of packages, has {size_bytes:,} bytes; the limit is {RECIPE_BYTES:,}"
        )
    try:
        recipe = Recipe.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise LayerRefused("the recipe is not one of ours") from error
    if len(recipe.packages) > RECIPE_PACKAGES:
        raise RecipeTooLong(
            f"the image would have {len(recipe.packages):,} packages; the limit is {RECIPE_PACKAGES:,}"
        )
    return recipe
