"""A cluster's catalogue of images, and how an image is published from another one and a user's packages."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from minicluster.wire.base import Message, Sha256
from minicluster.wire.limits import PACKAGES

ImageDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
ImageName = Annotated[str, Field(pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$", max_length=63)]
Publishing = Literal["ask", "allow", "off"]
"""Whether users may publish images: after an admin's approval, at once, or not at all."""
LAYER_FILE, RECIPE_FILE = "layer.tar.gz", "recipe.json"
"""The files that a publishing job writes into its output folder."""
LAYER_ROOT = "opt/minicluster"
"""The environment of users in an image: a published layer has nothing outside of it."""


def plain_name(package: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", package).lower()


class ImageState(StrEnum):
    """pending: waits for an admin. allowed: jobs and notebook servers may run it. retired: they may not."""

    PENDING = "pending"
    ALLOWED = "allowed"
    RETIRED = "retired"


class Pin(Message):
    """One package exactly: of an index by its version, or of `source` (a VCS at a commit, an archive)."""

    name: str = Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    version: str = Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9.!+_-]+$")
    source: str = Field(default="", max_length=2000)
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")

    @property
    def requirement(self) -> str:
        """What pip is told."""
        return f"{self.name} @ {self.source}" if self.source else f"{self.name}=={self.version}"

    @property
    def plain_name(self) -> str:
        return plain_name(self.name)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Recipe(Message):
    """What a layer was made of. python: its minor version. diff_sha256: of the layer unpacked."""

    packages: tuple[Pin, ...] = Field(min_length=1, max_length=PACKAGES)
    python: str = Field(pattern=r"^\d+\.\d+$")
    machine: str = Field(min_length=1, max_length=50)
    layer_sha256: Sha256
    layer_bytes: int = Field(ge=1)
    diff_sha256: Sha256


class Image(Message):
    """An image of the catalogue. reference: by which nodes pull it. device: "" where nobody knows.

    owner: who published it; "": the cluster's own. packages: what it has more than its base; of them a list
    has the first ones, and more_packages says how many are left out: GET api/images/{digest} has all.
    nodes: where it has run, so that its layers are there. size_bytes: as sent; 0: not known yet.
    """

    digest: ImageDigest
    name: str
    reference: str
    state: ImageState
    owner: str = ""
    description: str = ""
    device: Literal["cpu", "cuda", ""] = ""
    size_bytes: int = 0
    base_digest: ImageDigest | None = None
    packages: tuple[Pin, ...] = ()
    more_packages: int = 0
    nodes: tuple[str, ...] = ()
    created_at: float = 0.0


class ImageList(Message):
    """GET api/images: the cluster's own first, then the published ones by name.

    publishing: whether users may add images: at once, after an admin's approval, or not at all.
    """

    images: tuple[Image, ...]
    publishing: Publishing = "off"


class PublishImage(Message):
    """POST api/images: make an image from the output of a job of the user. It may be repeated."""

    name: ImageName
    job_id: int = Field(ge=1, le=10**15)
    description: str = Field(default="", max_length=500)


class Publication(Message):
    """The progress of a publication. image: once it is published. problem: why it failed."""

    job_id: int
    name: str
    doing: str = ""
    sent_bytes: int = 0
    total_bytes: int = 0
    image: Image | None = None
    problem: str = ""
    hint: str = ""
