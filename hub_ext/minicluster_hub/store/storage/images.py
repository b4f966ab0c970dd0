"""The images that a cluster offers, by digest, and the nodes that have them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Self

from sqlalchemy import Connection, Select, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from minicluster.wire import ImageState, Pin, Recipe
from minicluster.wire.limits import LISTED_PACKAGES
from minicluster_hub.jobs.records import ImageRecord
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.errors import ImageNameTaken
from minicluster_hub.store.rows import AnyRow, clean
from minicluster_hub.store.tables.main import IMAGE_NODES, IMAGES

_BRIEF = [column for column in IMAGES.c if column is not IMAGES.c.recipe]
"""Recipes are long: what goes through all images reads none."""
_REFUSED = select(IMAGES.c.reference).where(IMAGES.c.state != ImageState.ALLOWED)
_HEAD = '{"packages":['
_HEAD_CHARS = 8 << 10
"""How much of a recipe lists read. A package has 140 characters as a rule."""
_EACH_PACKAGE = '"version":'
"""Stands once in the text of each package: within JSON's strings quotes are escaped."""


@dataclass(frozen=True, slots=True)
class ListedImage:
    """An image with the first packages of its recipe. more_packages: how many are left out."""

    image: ImageRecord
    packages: tuple[Pin, ...]
    more_packages: int

    @classmethod
    def of(cls, image: ImageRecord, most: int | None = LISTED_PACKAGES) -> Self:
        """Return what is shown of an image with its recipe. most: None shows all packages."""
        packages = image.recipe.packages if image.recipe else ()
        first = packages[:most]
        return cls(image, first, len(packages) - len(first))


class ImageQueries(DatabasePart):
    """One transaction per method."""

    def all(self) -> list[ImageRecord]:
        """Return all images without their recipes.

        The cluster's own come first, then the others by name, the newest of a name first.
        """
        with self._database.read() as connection:
            rows = connection.execute(select(*_BRIEF)).all()
        return sorted(map(_record, rows), key=_place)

    def own(self) -> list[ImageRecord]:
        """Return the cluster's own images, in the order of `all`."""
        with self._database.read() as connection:
            rows = connection.execute(select(*_BRIEF).where(IMAGES.c.owner == "")).all()
        return sorted(map(_record, rows), key=_place)

    def called(self, words: Collection[str]) -> list[ImageRecord]:
        """Return those that have one of these as name or digest, without recipes, in the order of `all`."""
        same = or_(IMAGES.c.name.in_(words), IMAGES.c.digest.in_(words))
        with self._database.read() as connection:
            rows = connection.execute(select(*_BRIEF).where(same)).all()
        return sorted(map(_record, rows), key=_place)

    def listed(self, owner: str | None) -> list[ListedImage]:
        """Return what an owner may run or has published, or all (None), in the order of `all`."""
        theirs = or_(IMAGES.c.state == ImageState.ALLOWED, IMAGES.c.owner == owner)
        query = _listed() if owner is None else _listed().where(theirs)
        with self._database.read() as connection:
            found = [_listed_image(row) for row in connection.execute(query)]
        return sorted(found, key=lambda one: _place(one.image))

    def by_digest(self, digest: str) -> ListedImage | None:
        """Return an image as lists have it."""
        with self._database.read() as connection:
            row = connection.execute(_listed().where(IMAGES.c.digest == digest)).one_or_none()
        return None if row is None else _listed_image(row)

    def find(self, digest: str) -> ImageRecord | None:
        """Return an image with its recipe."""
        with self._database.read() as connection:
            row = connection.execute(select(IMAGES).where(IMAGES.c.digest == digest)).one_or_none()
        return None if row is None else _record(row)

    def count(self, owner: str) -> int:
        """Return how many images an owner has published that are not retired."""
        mine = (IMAGES.c.owner == owner, IMAGES.c.state != ImageState.RETIRED)
        with self._database.read() as connection:
            return connection.execute(select(func.count()).where(*mine)).scalar_one()

    def recipe_bytes(self, owner: str) -> int:
        """Return the total length of those images' recipes, in characters."""
        query = select(func.sum(func.length(IMAGES.c.recipe)))
        mine = (IMAGES.c.owner == owner, IMAGES.c.state != ImageState.RETIRED)
        with self._database.read() as connection:
            return int(connection.execute(query.where(*mine)).scalar() or 0)

    def nodes(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes that have each image, by its digest."""
        found: dict[str, list[str]] = {}
        with self._database.read() as connection:
            for row in connection.execute(select(IMAGE_NODES).order_by(IMAGE_NODES.c.node)):
                found.setdefault(row.digest, []).append(row.node)
        return {digest: tuple(nodes) for digest, nodes in found.items()}

    def enter_own(self, images: Sequence[ImageRecord]) -> None:
        """Offer exactly those of the cluster's own images that its settings name."""
        now = max((image.created_at for image in images), default=0.0)
        digests = [image.digest for image in images]
        with self._database.write() as connection:
            own = update(IMAGES).where(IMAGES.c.owner == "", IMAGES.c.state != ImageState.RETIRED)
            values = {"state": ImageState.RETIRED, "changed_at": now}
            connection.execute(own.where(IMAGES.c.digest.not_in(digests)).values(values))
            # Names are assigned anew in the order of the settings. The first image with a name gets it.
            connection.execute(own.values(state=ImageState.RETIRED))
            for image in images:
                _enter_own(connection, image)

    def describe(self, digest: str, size_bytes: int, device: str) -> None:
        """Store what the registry says of an image."""
        with self._database.write() as connection:
            values = {"size_bytes": size_bytes, "device": device}
            connection.execute(update(IMAGES).where(IMAGES.c.digest == digest).values(values))

    def check_name(self, name: str, owner: str) -> None:
        """Raise ImageNameTaken if someone else has an image of this name."""
        with self._database.read() as connection:
            _check_name(connection, name, owner)

    def publish(self, image: ImageRecord) -> ImageRecord:
        """Add a published image and return it. A known image keeps its state. Raises ImageNameTaken."""
        with self._database.write() as connection:
            _check_name(connection, image.name, image.owner)
            row = connection.execute(select(IMAGES).where(IMAGES.c.digest == image.digest)).one_or_none()
            if row is None:
                connection.execute(insert(IMAGES).values(_values(image)))
            if image.state is ImageState.ALLOWED and row is None:
                _give_name(connection, image.name, image.digest)
        return image if row is None else _record(row)

    def change(self, digest: str, state: ImageState, now: float) -> None:
        """Allow or retire an image. An allowed image takes the name over from its owner's earlier one."""
        with self._database.write() as connection:
            row = connection.execute(select(*_BRIEF).where(IMAGES.c.digest == digest)).one_or_none()
            if row is None:
                return
            values = {"state": state, "changed_at": now}
            if state is ImageState.ALLOWED:
                if any(one.owner != row.owner for one in _named(connection, row.name)):
                    values["name"] = _with_digest(row.name, digest)
                else:
                    _give_name(connection, row.name, digest)
            connection.execute(update(IMAGES).where(IMAGES.c.digest == digest).values(values))


def refused(connection: Connection) -> frozenset[str]:
    """Return the references of the images that may not run."""
    return frozenset(connection.execute(_REFUSED).scalars())


def note_node(connection: Connection, reference: str | None, node: str, now: float) -> None:
    """Record that a node runs an image, if the image is in the catalogue."""
    digest = (reference or "").rpartition("@")[2]
    known = connection.execute(select(IMAGES.c.digest).where(IMAGES.c.digest == digest)).scalar()
    if known is None:
        return
    same = (IMAGE_NODES.c.digest == digest, IMAGE_NODES.c.node == node)
    if connection.execute(update(IMAGE_NODES).where(*same).values(seen_at=now)).rowcount:
        return
    # Two agents of one node may report it at the same time.
    with suppress(IntegrityError), connection.begin_nested():
        connection.execute(insert(IMAGE_NODES).values(digest=digest, node=node, seen_at=now))


def _enter_own(connection: Connection, image: ImageRecord) -> None:
    known = connection.execute(select(IMAGES.c.digest).where(IMAGES.c.digest == image.digest)).one_or_none()
    name = image.name
    if any(row.digest != image.digest for row in _named(connection, name)):
        name = _with_digest(name, image.digest)
    if known is None:
        connection.execute(insert(IMAGES).values({**_values(image), "name": name}))
        return
    values = {"owner": "", "name": name, "reference": image.reference, "state": ImageState.ALLOWED}
    connection.execute(update(IMAGES).where(IMAGES.c.digest == image.digest).values(values))


def _named(connection: Connection, name: str) -> Iterable[AnyRow]:
    query = select(*_BRIEF).where(IMAGES.c.name == name, IMAGES.c.state != ImageState.RETIRED)
    return connection.execute(query).all()


def _check_name(connection: Connection, name: str, owner: str) -> None:
    for row in _named(connection, name):
        if row.owner != owner:
            raise ImageNameTaken(name, row.owner)


def _give_name(connection: Connection, name: str, digest: str) -> None:
    """Give a name to one image alone. Tasks that run an earlier image of this name go on with it."""
    for row in _named(connection, name):
        if row.digest != digest and row.state == ImageState.ALLOWED:
            values = {"name": _with_digest(name, row.digest)}
            connection.execute(update(IMAGES).where(IMAGES.c.digest == row.digest).values(values))


def _with_digest(name: str, digest: str) -> str:
    return f"{name}-{digest.removeprefix('sha256:')[:8]}"


def _place(image: ImageRecord) -> tuple[bool, str, float]:
    """Return what lists are sorted by."""
    return image.owner != "", image.name, -image.created_at


def _listed() -> Select[Any]:
    """Ask for images with the beginning of each recipe, and what the mark of its packages takes of it."""
    recipe = IMAGES.c.recipe
    without = func.replace(recipe, _EACH_PACKAGE, "")
    return select(
        *_BRIEF,
        func.substr(recipe, 1, _HEAD_CHARS).label("head"),
        (func.length(recipe) - func.length(without)).label("counted_chars"),
    )


def _listed_image(row: AnyRow) -> ListedImage:
    packages = _first_packages(row.head or "")
    count = (row.counted_chars or 0) // len(_EACH_PACKAGE)
    return ListedImage(_record(row), packages, count - len(packages))


def _first_packages(head: str) -> tuple[Pin, ...]:
    """Return the first packages of a recipe, as far as the beginning of its text has them."""
    found: list[Pin] = []
    decoder, at = json.JSONDecoder(), len(_HEAD)
    # What follows the last complete one is not JSON.
    with suppress(ValueError):
        while len(found) < LISTED_PACKAGES and head.startswith(_HEAD):
            package, end = decoder.raw_decode(head, at)
            found.append(Pin.model_validate(package))
            at = end + len(",")
    return tuple(found)


def _record(row: AnyRow) -> ImageRecord:
    """Return the image of a row, without a recipe if that was not read."""
    values: dict[str, Any] = {field.name: row._mapping.get(field.name) for field in fields(ImageRecord)}
    values["state"] = ImageState(values["state"])
    values["recipe"] = Recipe.model_validate_json(values["recipe"]) if values["recipe"] else None
    return ImageRecord(**values)


def _values(image: ImageRecord) -> dict[str, Any]:
    recipe = image.recipe.model_dump_json() if image.recipe else None
    # What counts to its owner: the layer in the registry, and the recipe here.
    layer_bytes = image.recipe.layer_bytes + len(recipe.encode()) if image.recipe and recipe else 0
    values: dict[str, Any] = {field.name: getattr(image, field.name) for field in fields(image)}
    return values | {"description": clean(image.description), "recipe": recipe, "layer_bytes": layer_bytes}
