"""`%distribute images`, and `%distribute publish`: runs the job that makes a layer, then pushes it."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass
from html import escape
from typing import Any

from pydantic import TypeAdapter, ValidationError

from minicluster.capture.payload import CellPayload
from minicluster.cell_run import RunContext, follow
from minicluster.client.client import IMAGE_VARIABLE, JobServiceClient
from minicluster.display.tables import Table
from minicluster.errors import MiniclusterError
from minicluster.publishing.layer import cell_source
from minicluster.publishing.site import pins, user_site
from minicluster.wire import (
    CountRange,
    Image,
    ImageList,
    ImageName,
    ImageState,
    JobSpec,
    Pin,
    Publication,
    PublishImage,
)
from minicluster.wire.limits import RECIPE_PACKAGES

_LOOK_S = 0.3


class NotPublished(MiniclusterError):
    """The image could not be published; the message says why."""


@dataclass(frozen=True)
class Published:
    """What `%distribute publish` returns. name: the requested name."""

    image: Image
    name: str

    def __repr__(self) -> str:
        image = self.image
        then = {
            ImageState.PENDING: "It waits for an administrator, who allows it on the hub's page Images.",
            ImageState.ALLOWED: f"Run cells in it: %%distribute --image {image.name}",
            ImageState.RETIRED: "An administrator has retired it: nothing runs in it.",
        }[image.state]
        packages = packages_text(image)
        if image.name == self.name:
            text = f"{image.name} is published, with {packages}."
        else:
            text = f"No image {self.name} was made: with {packages} it is {image.name}, of {image.owner}."
        return f"{text}\n{image.reference}\n{then}"


class PublishProgress:
    """One line that is updated during a push."""

    def __init__(self) -> None:
        self._shown = ""
        self._handle: Any = None

    def show(self, publication: Publication) -> None:
        text = progress_text(publication)
        if text == self._shown:
            return
        from IPython.display import display

        content = {"text/plain": text, "text/html": f"<p>{escape(text)}</p>"}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
        self._shown = text


def publish(context: RunContext, name: str, description: str) -> Published:
    """Make an image with the user's packages. Raises NotPublished, NotReplayable, and a job's errors."""
    base, found = os.environ.get(IMAGE_VARIABLE) or None, pins(user_site())
    _check_name(name)
    _check(name, base, found, context.service)
    job_id = _run_job(context, name, base, found)
    ask = PublishImage(name=name, job_id=job_id, description=description)
    return Published(push(context.service, ask, PublishProgress()), name)


def push(service: JobServiceClient, ask: PublishImage, progress: PublishProgress) -> Image:
    """Have the service publish the layer that a job wrote; show the progress. Raises NotPublished."""
    while True:
        publication = service.publish(ask)
        progress.show(publication)
        if publication.problem:
            raise NotPublished(f"{ask.name} was not published: {publication.problem}.", publication.hint)
        if publication.image is not None:
            return publication.image
        time.sleep(_LOOK_S)


def progress_text(publication: Publication) -> str:
    """Describe a push's progress in one line."""
    sent = f"{publication.sent_bytes / 1e6:.1f} of {publication.total_bytes / 1e6:.1f} MB"
    progress = f": {sent}" if publication.total_bytes else ""
    return f"Publishing {publication.name}, {publication.doing or 'not done'}{progress}"


def packages_text(image: Image) -> str:
    """List the packages that an image adds to its base; the service may have sent only some."""
    text = ", ".join(map(str, image.packages))
    return f"{text} and {image.more_packages} more".lstrip() if image.more_packages else text


def image_table(listed: ImageList) -> Table:
    """List images as `%distribute images` shows them."""
    rows = tuple(
        (
            image.name,
            image.state.value,
            {"cpu": "CPU", "cuda": "CUDA"}.get(image.device, ""),
            f"{image.size_bytes / 1e6:.0f} MB" if image.size_bytes else "",
            image.owner or "the cluster",
            ", ".join(image.nodes),
            packages_text(image),
            image.description,
        )
        for image in listed.images
    )
    heads = ("name", "state", "device", "size", "by", "on the nodes", "more than its base", "description")
    return Table(heads, rows, "No images: this cluster runs cells in its own environment.")


def _check_name(name: str) -> None:
    """Raises NotPublished."""
    try:
        TypeAdapter(ImageName).validate_python(name)
    except ValidationError:
        hint = "Small letters, digits, and single dots, dashes or underscores between them; at most 63."
        raise NotPublished(f"{name!r} is no name for an image.", hint) from None


def _check(name: str, base: str | None, found: tuple[Pin, ...], service: JobServiceClient) -> None:
    """Check, before the job runs, that its image can be published. Raises NotPublished."""
    if service.outside:
        hint = "Do it in a notebook that the hub started."
        raise NotPublished("Images are made of what was installed on the cluster, not here.", hint)
    listed = service.images()
    own = [image for image in listed.images if not image.owner and image.state is ImageState.ALLOWED]
    if not base and not own:
        hint = "Who runs the cluster installs packages into that environment, for everybody."
        raise NotPublished("This cluster runs cells in its own environment, and in no image.", hint)
    if not found:
        raise NotPublished("Nothing was installed here with pip.", "First: %pip install PACKAGE")
    if len(found) > RECIPE_PACKAGES:
        many = f"{len(found)} packages were installed here with pip; an image takes {RECIPE_PACKAGES}."
        raise NotPublished(many, "%pip uninstall packages that the image does not need.")
    if listed.publishing == "off":
        raise NotPublished("This cluster takes no images from its users.", "Ask who runs it.")
    for image in listed.images:
        if image.name == name and image.owner != service.user:
            owner = image.owner or "the cluster itself"
            raise NotPublished(f"There is an image {name} already, of {owner}.", "Choose another name.")


def _run_job(context: RunContext, name: str, base: str | None, found: tuple[Pin, ...]) -> int:
    """Run the job that makes the layer, with its panel; return its id. base: None: the cluster's default."""
    payload = CellPayload(source=cell_source(found), filename="%distribute publish", pull=())
    blob = context.service.put_blob(payload.to_bytes())
    nodes = CountRange(min=1, max=1)
    spec = JobSpec(name=f"publish {name}", payload_sha256=blob.sha256, nodes=nodes, image=base)
    key = uuid.uuid4().hex
    return follow(context, lambda: context.service.submit(spec, key)).job.id
