"""Small images as substitutes for the notebook's."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator
from typing import Any

from minicluster.wire import LAYER_ROOT, Pin, Recipe
from minicluster_hub.images.registry import OCI, Registry, digest_of

BASE = "minicluster/notebook"


async def one(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def put(client: Registry, repository: str, data: bytes) -> str:
    await client.upload(repository, digest_of(data), len(data), one(data))
    return digest_of(data)


def layer(files: dict[str, bytes]) -> tuple[bytes, bytes]:
    """Return a layer, compressed and uncompressed."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0), plain.getvalue()


def tiny(files: dict[str, bytes] | None = None) -> tuple[bytes, Recipe]:
    """Return a compressed layer of one small package, and its recipe. files: other content."""
    packed, plain = layer(files or {f"{LAYER_ROOT}/lib/tiny.py": b"RED = 1\n"})
    return packed, Recipe(
        packages=(Pin(name="tiny", version="1.0"),),
        python="3.12",
        machine="x86_64",
        layer_sha256=hashlib.sha256(packed).hexdigest(),
        layer_bytes=len(packed),
        diff_sha256=hashlib.sha256(plain).hexdigest(),
    )


async def push_base(
    client: Registry, family: str = OCI, more: dict[str, bytes] | None = None, **config: Any
) -> str:
    """Push a small image of two layers; return its digest. more: files of the second layer."""
    files = {f"{LAYER_ROOT}/lib/base.py": b"x = 1\n", **(more or {})}
    layers = [layer({"etc/os-release": b"lab"}), layer(files)]
    values = {
        "architecture": "amd64",
        "os": "linux",
        "created": "2026-01-02T03:04:05Z",
        "config": {"Env": ["A=b"], "Labels": {"org.minicluster.torch": "cpu"}},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(plain) for _, plain in layers]},
        "history": [{"created_by": "base"}, {"created_by": "more"}],
        **config,
    }
    oci = family == OCI
    layer_type = f"{OCI}.layer.v1.tar+gzip" if oci else "application/vnd.docker.image.rootfs.diff.tar.gzip"
    config_type = f"{OCI}.config.v1+json" if oci else "application/vnd.docker.container.image.v1+json"
    text = json.dumps(values).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{family}.manifest.v{1 if oci else 2}+json",
        "config": {"mediaType": config_type, "digest": await put(client, BASE, text), "size": len(text)},
        "layers": [
            {"mediaType": layer_type, "digest": await put(client, BASE, data), "size": len(data)}
            for data, _ in layers
        ],
    }
    body = json.dumps(manifest).encode()
    return await client.put_manifest(BASE, "1", body, manifest["mediaType"])
