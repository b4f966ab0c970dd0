"""Makes an image from a base image and a layer through the registry's API, without an engine or a build.

The same base, layer and recipe give the same digest, since the image has no data about the push.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicluster.wire import Recipe
from minicluster_hub.images.references import ImageReference
from minicluster_hub.images.registry import (
    DOCKER,
    OCI,
    PIECE_BYTES,
    Manifest,
    Registries,
    Registry,
    RegistryError,
    ReportProgress,
    digest_of,
)

RECIPE_LABEL, BASE_LABEL = "org.minicluster.recipe", "org.minicluster.base"
_BASES = "minicluster/bases"
"""Repository with the layers of base images from other registries, shared by all images on them."""
_LAYER_TYPES = {f"{DOCKER}.manifest.v2+json": "application/vnd.docker.image.rootfs.diff.tar.gzip"}


@dataclass(frozen=True, slots=True)
class DerivedImage:
    """The image to make. repository, tag: in the target registry."""

    base: ImageReference
    layer: Path
    recipe: Recipe
    repository: str
    tag: str


@dataclass(frozen=True, slots=True)
class PushedImage:
    digest: str
    size_bytes: int
    device: str


async def push(image: DerivedImage, registries: Registries, report: ReportProgress) -> PushedImage:
    """Make the image in the registry. Skip blobs that the registry has. Raises RegistryError."""
    source, target = registries.of(image.base), registries.own
    if source is None:
        raise RegistryError(f"the base image {image.base.repository} is in no registry of this cluster")
    base = await source.manifest(image.base.path, image.base.digest, image.recipe.machine)
    config = _serialized(_config(base, image))
    manifest = _manifest(base, image.recipe, config)
    *base_layers, layer = manifest["layers"]
    total = sum(int(one["size"]) for one in manifest["layers"])
    done = 0

    def layer_progress(doing: str) -> Callable[[int], None]:
        before = done
        return lambda sent: report(doing, before + sent, total)

    for one in base_layers:
        progress = layer_progress("copying the base's layers")
        progress(0)
        await _ensure_layer(one, image, source, target, progress)
        done += int(one["size"])
    pieces = _counted(_pieces(image.layer), layer_progress("sending the layer"))
    await _send(target, image.repository, layer, pieces)
    await _send(target, image.repository, manifest["config"], _one(config))
    digest = await target.put_manifest(image.repository, image.tag, _serialized(manifest), base.media_type)
    report("done", total, total)
    return PushedImage(digest, total, base.device)


def _serialized(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _config(base: Manifest, image: DerivedImage) -> dict[str, Any]:
    """Return the base's config with one more layer. It keeps the base's date."""
    config: dict[str, Any] = copy.deepcopy(dict(base.config))
    config["rootfs"]["diff_ids"].append(f"sha256:{image.recipe.diff_sha256}")
    step = {"created_by": "%distribute publish", "comment": ", ".join(map(str, image.recipe.packages))}
    if "created" in config:
        step["created"] = config["created"]
    config.setdefault("history", []).append(step)
    labels = dict(config.setdefault("config", {}).get("Labels") or {})
    labels |= {RECIPE_LABEL: image.recipe.model_dump_json(), BASE_LABEL: image.base.digest}
    config["config"]["Labels"] = labels
    return config


def _manifest(base: Manifest, recipe: Recipe, config: bytes) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(dict(base.document))
    document["config"] |= {"digest": digest_of(config), "size": len(config)}
    kind = _LAYER_TYPES.get(base.media_type, f"{OCI}.layer.v1.tar+gzip")
    layer = {"mediaType": kind, "digest": f"sha256:{recipe.layer_sha256}", "size": recipe.layer_bytes}
    document["layers"].append(layer)
    document.pop("annotations", None)  # they describe the base
    return document


async def _ensure_layer(
    layer: dict[str, Any],
    image: DerivedImage,
    source: Registry,
    target: Registry,
    progress: Callable[[int], None],
) -> None:
    """Copy one of the base's layers into the image's repository, unless it is there."""
    digest, size_bytes = str(layer["digest"]), int(layer["size"])

    async def copy_to(repository: str) -> None:
        if not await target.has_blob(repository, digest):
            async with source.blob(image.base.path, digest) as pieces:
                await target.upload(repository, digest, size_bytes, _counted(pieces, progress))

    if await target.has_blob(image.repository, digest):
        return
    origin = image.base.path
    if source is not target:
        origin = _BASES
        await copy_to(origin)
    if not await target.mount(image.repository, digest, origin):
        await copy_to(image.repository)


async def _send(
    target: Registry, repository: str, what: dict[str, Any], pieces: AsyncIterator[bytes]
) -> None:
    if not await target.has_blob(repository, str(what["digest"])):
        await target.upload(repository, str(what["digest"]), int(what["size"]), pieces)


async def _counted(pieces: AsyncIterator[bytes], progress: Callable[[int], None]) -> AsyncIterator[bytes]:
    """Yield the same bytes, and report how many came so far."""
    sent = 0
    async for piece in pieces:
        yield piece
        sent += len(piece)
        progress(sent)


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data
