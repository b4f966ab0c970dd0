"""The lab's images: the build engine builds them, nodes pull them from the outside registry."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .builder import BASE_IMAGE, build_engine
from .engine import Engine
from .node import Node
from .packages import locked
from .processes import LabError, run
from .registry import OutsideRegistry

_TREE = Path(__file__).resolve().parents[3]
_TAG = f"tree-{hashlib.sha256(bytes(_TREE)).hexdigest()[:8]}"
"""All labs share the build engine, so each source tree's images have their own tag."""
HUB_IMAGE, NOTEBOOK_IMAGE = f"minicluster/hub:{_TAG}", f"minicluster/notebook:{_TAG}"
REGISTRY_IMAGE = "minilab/registry:2"
_REGISTRY_DOCKERFILE = f"""FROM {BASE_IMAGE}
COPY docker-registry /usr/bin/
COPY config.yml /etc/docker/registry/config.yml
VOLUME /var/lib/registry
EXPOSE 5000
ENTRYPOINT ["docker-registry"]
CMD ["serve", "/etc/docker/registry/config.yml"]
"""
_REGISTRY_CONFIG = """version: 0.1
storage: {filesystem: {rootdirectory: /var/lib/registry}, delete: {enabled: true}}
http: {addr: ":5000"}
"""


def build(dockerfile: Path, tag: str, context: Path, buildargs: Mapping[str, str]) -> None:
    """Build an image with the classic builder, in the root's network."""
    engine = build_engine()
    arguments = ["build", "--network=host", f"--file={dockerfile}", f"--tag={tag}"]
    arguments += [word for key, value in buildargs.items() for word in ("--build-arg", f"{key}={value}")]
    run("docker", *arguments, context, environment={**engine.environment(), "DOCKER_BUILDKIT": "0"})


def build_product() -> tuple[str, str]:
    """Build the hub and the notebook image from this tree, as images/build does; return their names."""
    engine = build_engine()
    arguments = ["images/build", "--tag", _TAG, "--base", BASE_IMAGE, "--network", "host"]
    arguments += ["--from-environment", "--quiet"]
    environment = {**engine.environment(), "DOCKER_BUILDKIT": "0"}
    with locked("images"):  # a parallel run of the tests then finds all layers
        subprocess.run(arguments, check=True, cwd=_TREE, env=environment, stdout=subprocess.DEVNULL)
    return HUB_IMAGE, NOTEBOOK_IMAGE


def build_registry() -> str:
    """Build a substitute for docker.io/library/registry:3 from Debian's package."""
    program = shutil.which("docker-registry")
    if program is None:
        raise LabError("docker-registry is missing: apt-get install docker-registry")
    with tempfile.TemporaryDirectory() as context:
        shutil.copy(program, context)
        dockerfile = Path(context, "Dockerfile")
        dockerfile.write_text(_REGISTRY_DOCKERFILE)
        Path(context, "config.yml").write_text(_REGISTRY_CONFIG)
        build(dockerfile, REGISTRY_IMAGE, Path(context), {})
    return REGISTRY_IMAGE


def push(image: str, registry: OutsideRegistry) -> str:
    """Push an image from the build engine to an outside registry; return its name there."""
    engine, reference = build_engine(), f"{registry.host}/{image}"
    engine.docker("tag", image, reference)
    engine.docker("push", "--quiet", reference)
    engine.docker("rmi", reference)
    return reference


def pull(reference: str, nodes: Sequence[Node], name: str) -> None:
    """Pull an image on all nodes in parallel and tag it; skip nodes that have it."""
    wanted = ids_of((name,))[name]

    def one(engine: Engine) -> None:
        if _id(engine, name) != wanted:
            engine.docker("pull", "--quiet", reference)
            engine.docker("tag", reference, name)
            engine.docker("rmi", reference)

    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(one, [node.engine for node in nodes]))


def drop_others(node: Node, names: Collection[str]) -> None:
    """Remove all images from a node except those with these names."""
    images = node.engine.docker("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    for name in {*images} - {*names, "<none>:<none>"}:
        node.engine.docker("rmi", name)
    node.engine.docker("image", "prune", "--force")


def ids_of(names: Sequence[str]) -> dict[str, str]:
    """Return the ids of images in the build engine; they are the same on all engines."""
    engine = build_engine()
    ids = {name: _id(engine, name) for name in names}
    missing = [name for name, found in ids.items() if not found]
    if missing:
        raise LabError(f"not in the build engine: {', '.join(missing)}; `images` builds all")
    return ids


def _id(engine: Engine, name: str) -> str:
    """Return the id of an engine's image; "" if it has no image of that name."""
    return engine.docker("images", "--quiet", "--no-trunc", name).strip()
