"""The images that a cluster offers, by digest, and the nodes that have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from minicluster.wire import ImageState, Recipe
from minicluster_hub.models import ImageRecord
from minicluster_hub.store.database import Database
from minicluster_hub.store.errors import ImageNameTaken
from minicluster_hub.store.rows import AnyRow, clean
from minicluster_hub.store.tables import IMAGE_NODES, IMAGES


class Images:
    """What the service asks of the catalogue: one transaction per method."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[ImageRecord]:
        """Return all images: the cluster's own first, then by name, the newest of a name first."""
        with self._database.read() as connection:
            rows = connection.execute(select(IMAGES)).all()
        found = sorted(map(_record, rows), key=lambda image: -image.created_at)
        return sorted(found, key=lambda image: (image.owner != "", image.name))

    def find(self, digest: str) -> ImageRecord | None:
        with self._database.read() as connection:
            row = connection.execute(select(IMAGES).where(IMAGES.c.digest == digest)).one_or_none()
        return None if row is None else _record(row)

    def count(self, owner: str) -> int:
        """Return how many images an owner has published that are not retired."""
        mine = (IMAGES.c.owner == owner, IMAGES.c.state != ImageState.RETIRED)
        with self._database.read() as connection:
            return connection.execute(select(func.count()).where(*mine)).scalar_one()

    def nodes(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes that have each image, by its digest."""
        found: dict[str, list[str]] = {}
        with self._database.read() as connection:
            for row in connection.execute(select(IMAGE_NODES).order_by(IMAGE_NODES.c.node)):
                found.setdefault(row.digest, []).append(row.node)
        return {digest: tuple(nodes) for digest, nodes in found.items()}

    def enter_own(self, images: Sequence[ImageRecord]) -> None:
        """Offer what the cluster's settings name, and of the cluster's own images nothing else."""
        now = max((image.created_at for image in images), default=0.0)
        digests = [image.digest for image in images]
        with self._database.write() as connection:
            own = update(IMAGES).where(IMAGES.c.owner == "", IMAGES.c.state != ImageState.RETIRED)
            values = {"state": ImageState.RETIRED, "changed_at": now}
            connection.execute(own.where(IMAGES.c.digest.not_in(digests)).values(values))
            # Names are given anew in the order of the settings: the first of a name has it.
            connection.execute(own.values(state=ImageState.RETIRED))
            for image in images:
                _enter_own(connection, image)

    def describe(self, digest: str, size_bytes: int, device: str) -> None:
        """Keep what the registry says of an image."""
        with self._database.write() as connection:
            values = {"size_bytes": size_bytes, "device": device}
            connection.execute(update(IMAGES).where(IMAGES.c.digest == digest).values(values))

    def check_name(self, name: str, owner: str) -> None:
        """Raise ImageNameTaken if someone else has an image of this name."""
        with self._database.read() as connection:
            _check_name(connection, name, owner)

    def publish(self, image: ImageRecord) -> ImageRecord:
        """Enter a published image and return it; one that is known keeps its state. Raises ImageNameTaken."""
        with self._database.write() as connection:
            _check_name(connection, image.name, image.owner)
            row = connection.execute(select(IMAGES).where(IMAGES.c.digest == image.digest)).one_or_none()
            if row is None:
                connection.execute(insert(IMAGES).values(_values(image)))
            if image.state is ImageState.ALLOWED and row is None:
                _give_name(connection, image.name, image.digest)
        return image if row is None else _record(row)

    def change(self, digest: str, state: ImageState, now: float) -> None:
        """Allow or retire an image; one that is allowed takes its name over from its owner's earlier one."""
        with self._database.write() as connection:
            row = connection.execute(select(IMAGES).where(IMAGES.c.digest == digest)).one_or_none()
            if row is None:
                return
            values = {"state": state, "changed_at": now}
            if state is ImageState.ALLOWED:
                if any(one.owner != row.owner for one in _named(connection, row.name)):
                    values["name"] = _told_apart(row.name, digest)
                else:
                    _give_name(connection, row.name, digest)
            connection.execute(update(IMAGES).where(IMAGES.c.digest == digest).values(values))


def refused(connection: Connection) -> frozenset[str]:
    """Return the references of the images that may not run."""
    query = select(IMAGES.c.reference).where(IMAGES.c.state != ImageState.ALLOWED)
    return frozenset(connection.execute(query).scalars())


def note_node(connection: Connection, reference: str | None, node: str, now: float) -> None:
    """Keep that a node runs an image, if it is one of the catalogue."""
    digest = (reference or "").rpartition("@")[2]
    known = connection.execute(select(IMAGES.c.digest).where(IMAGES.c.digest == digest)).scalar()
    if known is None:
        return
    same = (IMAGE_NODES.c.digest == digest, IMAGE_NODES.c.node == node)
    if connection.execute(update(IMAGE_NODES).where(*same).values(seen_at=now)).rowcount:
        return
    # Two agents of one node may say it at once.
    with suppress(IntegrityError), connection.begin_nested():
        connection.execute(insert(IMAGE_NODES).values(digest=digest, node=node, seen_at=now))


def _enter_own(connection: Connection, image: ImageRecord) -> None:
    known = connection.execute(select(IMAGES).where(IMAGES.c.digest == image.digest)).one_or_none()
    name = image.name
    if any(row.digest != image.digest for row in _named(connection, name)):
        name = _told_apart(name, image.digest)
    if known is None:
        connection.execute(insert(IMAGES).values({**_values(image), "name": name}))
        return
    values = {"owner": "", "name": name, "reference": image.reference, "state": ImageState.ALLOWED}
    connection.execute(update(IMAGES).where(IMAGES.c.digest == image.digest).values(values))


def _named(connection: Connection, name: str) -> Iterable[AnyRow]:
    query = select(IMAGES).where(IMAGES.c.name == name, IMAGES.c.state != ImageState.RETIRED)
    return connection.execute(query).all()


def _check_name(connection: Connection, name: str, owner: str) -> None:
    for row in _named(connection, name):
        if row.owner != owner:
            raise ImageNameTaken(name, row.owner)


def _give_name(connection: Connection, name: str, digest: str) -> None:
    """Have one image alone go by a name; who runs an earlier one goes on with it."""
    for row in _named(connection, name):
        if row.digest != digest and row.state == ImageState.ALLOWED:
            values = {"name": _told_apart(name, row.digest)}
            connection.execute(update(IMAGES).where(IMAGES.c.digest == row.digest).values(values))


def _told_apart(name: str, digest: str) -> str:
    return f"{name}-{digest.removeprefix('sha256:')[:8]}"


def _record(row: AnyRow) -> ImageRecord:
    values: dict[str, Any] = dict(row._mapping)
    del values["layer_bytes"]
    values["state"] = ImageState(values["state"])
    values["recipe"] = Recipe.model_validate_json(values["recipe"]) if values["recipe"] else None
    return ImageRecord(**values)


def _values(image: ImageRecord) -> dict[str, Any]:
    recipe = image.recipe.model_dump_json() if image.recipe else None
    return {
        "digest": image.digest,
        "name": image.name,
        "reference": image.reference,
        "owner": image.owner,
        "description": clean(image.description),
        "device": image.device,
        "size_bytes": image.size_bytes,
        "base_digest": image.base_digest,
        "recipe": recipe,
        "state": image.state,
        "created_at": image.created_at,
        "changed_at": image.changed_at,
        "layer_bytes": image.recipe.layer_bytes if image.recipe else 0,
    }
