"""An image out of another one and a layer, by the registry's API alone: no engine, no build.

Whoever does it with the same base, layer and recipe gets the same digest: nothing of the push is in it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from minicluster.wire import Recipe
from minicluster_hub.images.references import Reference
from minicluster_hub.images.registry import (
    DOCKER,
    OCI,
    PIECE_BYTES,
    Manifest,
    Registries,
    Registry,
    RegistryError,
    Told,
    digest_of,
)

RECIPE_LABEL, BASE_LABEL = "org.minicluster.recipe", "org.minicluster.base"
_BASES = "minicluster/bases"
"""Where layers of bases from elsewhere come to once, for all that is made of them."""
_LAYER_TYPES = {f"{DOCKER}.manifest.v2+json": "application/vnd.docker.image.rootfs.diff.tar.gzip"}


@dataclass(frozen=True, slots=True)
class Child:
    """What is to be made. repository, tag: of the registry that takes it."""

    base: Reference
    layer: Path
    recipe: Recipe
    repository: str
    tag: str


@dataclass(frozen=True, slots=True)
class Pushed:
    digest: str
    size_bytes: int
    device: str


async def push(child: Child, registries: Registries, told: Told) -> Pushed:
    """Make the image in the registry. What is there already is not sent again. Raises RegistryError."""
    source, target = registries.holding(child.base), registries.own
    if source is None:
        raise RegistryError(f"the base {child.base.repository} is in no registry of this cluster")
    base = await source.manifest(child.base.path, child.base.digest, child.recipe.machine)
    config = json.dumps(_config(base, child), sort_keys=True, separators=(",", ":")).encode()
    manifest = _manifest(base, child.recipe, config)
    total = sum(int(layer["size"]) for layer in manifest["layers"])
    done = 0
    for layer in manifest["layers"][:-1]:
        tell = partial(_tell, told, "bringing the base's layers", done, total)
        tell(0)
        await _have(layer, child, source, target, tell)
        done += int(layer["size"])
    tell = partial(_tell, told, "sending the layer", done, total)
    await _send(target, child.repository, manifest["layers"][-1], _counted(_pieces(child.layer), tell))
    await _send(target, child.repository, manifest["config"], _one(config))
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    digest = await target.put_manifest(child.repository, child.tag, text, base.media_type)
    told("done", total, total)
    return Pushed(digest, total, base.device)


def _config(base: Manifest, child: Child) -> dict[str, Any]:
    """Return the base's config with one more layer. Its date is the base's: a push has none."""
    config: dict[str, Any] = copy.deepcopy(dict(base.config))
    config["rootfs"]["diff_ids"].append(f"sha256:{child.recipe.diff_sha256}")
    step = {"created_by": "%distribute publish", "comment": ", ".join(map(str, child.recipe.packages))}
    if "created" in config:
        step["created"] = config["created"]
    config.setdefault("history", []).append(step)
    labels = dict(config.setdefault("config", {}).get("Labels") or {})
    labels |= {RECIPE_LABEL: child.recipe.model_dump_json(), BASE_LABEL: child.base.digest}
    config["config"]["Labels"] = labels
    return config


def _manifest(base: Manifest, recipe: Recipe, config: bytes) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(dict(base.document))
    document["config"] |= {"digest": digest_of(config), "size": len(config)}
    kind = _LAYER_TYPES.get(base.media_type, f"{OCI}.layer.v1.tar+gzip")
    layer = {"mediaType": kind, "digest": f"sha256:{recipe.layer_sha256}", "size": recipe.layer_bytes}
    document["layers"].append(layer)
    # They speak of the base, which the child is not.
    document.pop("annotations", None)
    return document


async def _have(
    layer: dict[str, Any], child: Child, source: Registry, target: Registry, tell: Callable[[int], None]
) -> None:
    """Have one of the base's layers in the child's repository."""
    digest = str(layer["digest"])

    async def bring(repository: str) -> None:
        if not await target.has_blob(repository, digest):
            async with source.blob(child.base.path, digest) as pieces:
                await target.upload(repository, digest, int(layer["size"]), _counted(pieces, tell))

    if await target.has_blob(child.repository, digest):
        return
    if source is not target:
        await bring(_BASES)
    origin = child.base.path if source is target else _BASES
    if not await target.mount(child.repository, digest, origin):
        await bring(child.repository)


async def _send(
    target: Registry, repository: str, what: dict[str, Any], pieces: AsyncIterator[bytes]
) -> None:
    if not await target.has_blob(repository, str(what["digest"])):
        await target.upload(repository, str(what["digest"]), int(what["size"]), pieces)


def _tell(told: Told, doing: str, done: int, total: int, sent: int) -> None:
    told(doing, done + sent, total)


async def _counted(pieces: AsyncIterator[bytes], tell: Callable[[int], None]) -> AsyncIterator[bytes]:
    """Pass bytes on, and tell how many there were."""
    sent = 0
    async for piece in pieces:
        yield piece
        sent += len(piece)
        tell(sent)


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data
