"""The lab's folders: a cache that remains between runs, and a folder per lab that is removed with it."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_ENV = "MINICLUSTER_LAB_CACHE"
LAB_NETWORK = "10.64.0.0/10"
"""The network that contains all labs' subnets; the build engine uses registries in it without TLS."""


def cache_folder() -> Path:
    """Return the folder for downloads, builds and stored data."""
    return Path(os.environ.get(CACHE_ENV) or "/var/cache/minicluster-lab")


def run_folder() -> Path:
    """Return the folder for sockets and process records; fixed, since Unix socket paths must be short."""
    return Path("/run/minilab")


def engine_folder() -> Path:
    """Return the folder of the unpacked Docker Engine."""
    return cache_folder() / "engine"


def search_path() -> str:
    """Return PATH with the unpacked engine's programs first."""
    engine = engine_folder()
    rest = os.environ.get("PATH", "/usr/bin:/bin")
    return f"{engine}/usr/bin:{engine}/usr/sbin:{rest}:/usr/sbin:/sbin"
