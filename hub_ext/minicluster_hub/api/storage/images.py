"""The catalogue of images: listed for users, published by users, allowed and retired by admins."""

from __future__ import annotations

from minicluster.wire import (
    LAYER_FILE,
    RECIPE_FILE,
    Image,
    ImageList,
    ImageState,
    JobState,
    Publication,
    PublishImage,
    StorageKind,
)
from minicluster_hub.api.servers import SpawnerHandler
from minicluster_hub.images.catalogue import ImageOwn
from minicluster_hub.images.publishing import PublishingBusy, PublishingFiles
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.storage.blobs import artifact_file
from minicluster_hub.storage.quotas import cost
from minicluster_hub.store import ImageNameTaken
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError, too_many
from minicluster_hub.web.route import Scope, route

_MOST_OF_OWNER = 100
"""A limit, since lists show all of them."""
_MOST_RECIPES_BYTES = 8 << 20
"""For all images of an owner: 100 with 600 packages each. SQLite reads through recipes to read rows."""


class ImagesHandler(UserHandler):
    """Lists and publishes images."""

    @route(
        "api/images",
        "Images that jobs may name; admins see all of them",
        scope=Scope.READ,
        answer=ImageList,
    )
    async def get(self) -> None:
        admin = self.user.has(Scope.ADMIN)
        self.reply(await self.context.catalogue.listed(self.user.name, everything=admin))

    @route(
        "api/images",
        "Publish a job's image; repeat it to get the progress",
        scope=Scope.SUBMIT,
        body=PublishImage,
        answer=Publication,
        status=202,
    )
    def post(self) -> None:
        ask = self.parse(PublishImage)
        if not self.context.catalogue.can_publish:
            message = "users of this cluster cannot publish images"
            raise ApiError(403, "publishing_off", message, "Ask an admin to add the packages.")
        job = self.job_record(str(ask.job_id), admins=False)
        try:
            self.context.store.images.check_name(ask.name, job.owner)
        except ImageNameTaken as taken:
            raise ApiError(409, "name_taken", str(taken), "Choose another name.") from taken
        left = self._left_by(job)
        if not self.context.publications.is_requested(job, ask):
            self._check_room(job.owner, left.layer.stat().st_size, left.recipe.stat().st_size)
        try:
            publication = self.context.publications.start(job, ask, left)
        except PublishingBusy as busy:
            raise too_many("publishing_busy", str(busy), "Try again when one is done.", wait_s=10.0) from busy
        self.reply(publication, 202)

    def _check_room(self, owner: str, layer_bytes: int, recipe_bytes: int) -> None:
        """Raise OverQuota, DiskReserved or ApiError. An image counts until it is retired."""
        images, message = self.context.store.images, ""
        if images.count(owner) >= _MOST_OF_OWNER:
            message = f"you have {_MOST_OF_OWNER} images in the catalogue, which is the limit"
        elif images.recipe_bytes(owner) + recipe_bytes > _MOST_RECIPES_BYTES:
            most = f"{_MOST_RECIPES_BYTES >> 20} MB"
            message = f"the lists of packages of all your images together would exceed {most}"
        if message:
            raise ApiError(409, "too_many_images", message, "Ask an admin to retire those that nobody needs.")
        size_bytes = layer_bytes + recipe_bytes
        self.context.storage.disk.check(size_bytes)
        self.context.storage.check(owner, StorageKind.IMAGES, cost(size_bytes))

    def _left_by(self, job: JobRecord) -> PublishingFiles:
        """Return the files of the publishing job. Raises ApiError (409, 422)."""
        if job.state is not JobState.SUCCEEDED:
            hint = "" if job.state.terminal else "Wait for its end."
            raise ApiError(409, "job_not_done", f"job {job.id} is {job.state}: it has no layer yet", hint)
        store, blobs = self.context.store, self.context.blobs
        layer, recipe = (artifact_file(store, blobs, job.id, name) for name in (LAYER_FILE, RECIPE_FILE))
        if layer is None or recipe is None or job.spec.image is None:
            message = f"job {job.id} made no layer of an image"
            raise ApiError(422, "no_layer", message, "%distribute publish NAME makes one and publishes it.")
        return PublishingFiles(layer, recipe)


class ImageHandler(UserHandler):
    @route(
        "api/images/{digest}",
        "One image with all of its packages; lists have the first ones",
        scope=Scope.READ,
        answer=Image,
    )
    async def get(self, digest: str) -> None:
        admin = self.user.has(Scope.ADMIN)
        image = await self.context.catalogue.whole(digest, self.user.name, everything=admin)
        if image is None:
            raise _unknown(digest)
        self.reply(image)


class ImageStateHandler(UserHandler):
    """Base: an admin's decision about an image."""

    def decide(self, digest: str, state: ImageState) -> None:
        try:
            image = self.context.catalogue.change(digest, state, self.user.name)
        except ImageOwn as own:
            raise ApiError(409, "image_own", str(own), own.hint) from own
        if image is None:
            raise _unknown(digest)
        # Jobs that wait for a retired image get their new reason.
        self.context.reconciler.wake()
        self.reply(image)


class AllowHandler(ImageStateHandler):
    @route("api/images/{digest}/allow", "Let jobs and servers run an image", scope=Scope.ADMIN, answer=Image)
    def post(self, digest: str) -> None:
        self.decide(digest, ImageState.ALLOWED)


class RetireHandler(ImageStateHandler):
    @route(
        "api/images/{digest}/retire",
        "Retire an image: no new job or server runs it",
        scope=Scope.ADMIN,
        answer=Image,
    )
    def post(self, digest: str) -> None:
        self.decide(digest, ImageState.RETIRED)


class ServerImagesHandler(SpawnerHandler):
    """For the spawner, whose form lists these images."""

    @route("api/servers/images", "Images that notebook servers may run", scope=Scope.PLACE, answer=ImageList)
    async def get(self) -> None:
        self.reply(await self.context.catalogue.listed(""))


def _unknown(digest: str) -> ApiError:
    message = f"there is no image {digest} in the catalogue"
    return ApiError(404, "unknown_image", message, "GET api/images lists them")
