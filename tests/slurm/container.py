"""Runs a command in an image, in the place of Apptainer, which no package registry has.

    python container.py REGISTRY IMAGE COMMAND...

REGISTRY is the folder of a registry of tests/service/publishing; images are unpacked below it, once each. The
command sees this machine's files; what it has of the image is the programs of /opt/minicluster, which come
first.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import sys
import tarfile
from pathlib import Path

from minicluster.wire import LAYER_ROOT
from minicluster_hub.images.references import ImageReference
from minicluster_hub.images.registry import Registry


async def unpack(image: ImageReference, registry: Path, target: Path) -> None:
    name, _, password = (registry / "login").read_text().strip().partition(":")
    client = Registry(f"https://{image.host}", (name, password), str(registry / "ca"))
    try:
        manifest = await client.manifest(image.path, image.digest)
        for layer in manifest.document["layers"]:
            async with client.blob(image.path, layer["digest"]) as pieces:
                packed = b"".join([piece async for piece in pieces])
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                # A link of the environment leads to this machine's Python.
                archive.extraction_filter = lambda member, _: member
                archive.extractall(target)
    finally:
        await client.close()


def main() -> None:
    registry, image, *command = sys.argv[1:]
    reference = ImageReference.of(image)
    root = Path(registry) / "images" / reference.digest.rpartition(":")[2]
    root.parent.mkdir(exist_ok=True)
    with (root.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            fresh = root.with_suffix(".new")
            asyncio.run(unpack(reference, Path(registry), fresh))
            fresh.rename(root)
    programs = root / LAYER_ROOT / "bin"
    os.execvpe(command[0], command, os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"})


if __name__ == "__main__":
    main()
