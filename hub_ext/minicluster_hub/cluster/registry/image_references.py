"""Resolves an image's name to a reference by digest that each node can pull."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.errors import ImageUnusable
from minicluster_hub.cluster.registry.relay import (
    HOST,
    RELAY_CACHE_PORT,
    RELAY_PUBLISH_PORT,
    RELAY_REGISTRY_PORT,
)
from minicluster_hub.engines.swarm.docker import DockerError, DockerMissing

_HUB_NAMES = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}
PUBLISHED = f"{HOST}:{RELAY_PUBLISH_PORT}/minicluster"
_OLDEST_RANKS = (0, 2)
"""The first release with ranks that report by TLS; older ranks cannot report to this job service."""
_NOTEBOOK_FILE = Path("share", "minicluster", "published.json")
"""In the hub image, below Python's prefix: images/publish writes the notebook image's name there."""
Progress = Callable[[str], None]
"""Called with a text that says what the command waits for."""


def notebook_of_this_release(prefix: Path | None = None) -> str:
    """Return the notebook image that belongs to this hub image; "" if the hub image names none."""
    try:
        return str(json.loads(((prefix or Path(sys.prefix)) / _NOTEBOOK_FILE).read_text())["notebook"])
    except (OSError, ValueError, KeyError):
        return ""


def for_the_platform(daemon: Daemon, name: str, progress: Progress) -> str:
    """Return NAME@DIGEST that other nodes can pull, too; else the image's id, which only this manager has."""
    image = ensure_local(daemon, name, progress)
    repository, _, digest = split(name)
    known = sorted(image.get("RepoDigests") or (), key=lambda one: not one.startswith(f"{repository}@"))
    for candidate in [f"{repository}@{digest}"] if digest else known:
        # An engine may list a digest for an image that was only built here: check that the registry has it.
        with suppress(DockerError):
            daemon.once("inspect_distribution", candidate)
            return candidate
    return str(image["Id"])


def through_cache(daemon: Daemon, name: str, upstream: str | None) -> str | None:
    """Return the reference for pulling an image through the cache; None if upstream does not have it."""
    repository, _, digest = split(name)
    host, path = host_and_path(repository)
    if upstream is None or _registry_host(host) != urlsplit(upstream).netloc:
        return None
    if not digest:
        try:
            digest = daemon.once("inspect_distribution", name)["Descriptor"]["digest"]
        except DockerError:
            return None
    return f"{HOST}:{RELAY_CACHE_PORT}/{path}@{digest}"


def publish(daemon: Daemon, name: str, as_name: str, login: Mapping[str, str], progress: Progress) -> str:
    """Push an image into the cluster's registry; return the reference for nodes."""
    image = ensure_local(daemon, name, progress)
    repository, tag = f"{PUBLISHED}/{as_name}", str(image["Id"]).removeprefix("sha256:")[:12]
    daemon.call("tag", image["Id"], repository, tag)
    digest = ""
    layers: dict[str, str] = {}
    for line in daemon.stream("push", repository, tag=tag, auth_config=dict(login)):
        digest = (line.get("aux") or {}).get("Digest", digest)
        if "id" in line:
            layers[line["id"]] = str(line.get("status", ""))
            done = sum(state in ("Pushed", "Layer already exists") for state in layers.values())
            progress(f"{done} of {len(layers)} layers")
    if not digest:
        raise ImageUnusable(
            f"The image {name} was pushed into the cluster's registry, and has no digest there."
        )
    return f"{HOST}:{RELAY_REGISTRY_PORT}/minicluster/{as_name}@{digest}"


def ensure_local(daemon: Daemon, name: str, progress: Progress) -> Mapping[str, Any]:
    """Return the engine's description of an image; pull a missing one. Raises ImageUnusable."""
    try:
        return daemon.call("inspect_image", name)
    except DockerMissing:
        pass
    try:
        repository, tag, digest = split(name)
        for line in daemon.stream("pull", repository, tag=digest or tag or "latest"):
            progress(f"pulling: {line.get('status', '')}")
        return daemon.call("inspect_image", name)
    except DockerError as error:
        raise ImageUnusable(
            f"The image {name} is not on this machine and cannot be pulled: {error.message}. Check the name."
            " Where the machine cannot reach the outside, load the image (docker load), or name one that it"
            " can reach."
        ) from error


def ranks_can_report(daemon: Daemon, hub_image: str) -> bool:
    """Whether ranks of a hub image's release can report to this one's job service.

    An image that is gone, or names no release, counts as new enough.
    """
    try:
        about = daemon.call("inspect_image", hub_image)
    except DockerMissing:
        return True
    release = ((about.get("Config") or {}).get("Labels") or {}).get("org.opencontainers.image.version", "")
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is None or (int(found[1]), int(found[2])) >= _OLDEST_RANKS


def split(name: str) -> tuple[str, str, str]:
    """Return REPOSITORY, TAG and DIGEST of REPOSITORY[:TAG][@DIGEST]; "" for each that is missing."""
    rest, _, digest = name.partition("@")
    head, slash, last = rest.rpartition("/")
    last, _, tag = last.partition(":")
    return f"{head}{slash}{last}", tag, digest


def host_and_path(repository: str) -> tuple[str, str]:
    """Return a repository's registry and its path there, with Docker's defaults for missing parts."""
    first, slash, rest = repository.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host, path = first, rest
    else:
        host, path = "docker.io", repository
    return host, path if "/" in path or host != "docker.io" else f"library/{path}"


def upstream_of(name: str) -> str:
    """Return the URL of the registry that an image comes from."""
    return f"https://{_registry_host(host_and_path(split(name)[0])[0])}"


def _registry_host(host: str) -> str:
    return _HUB_NAMES.get(host, host)
