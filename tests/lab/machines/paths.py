"""Where the lab keeps things: a cache that stays between runs, and a folder per lab that goes with it."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_ENV = "MINICLUSTER_LAB_CACHE"
LAB_NETWORK = "10.64.0.0/10"
"""All labs' subnets lie in it; the build engine speaks to registries in it without TLS."""


def cache_folder() -> Path:
    """Return the folder for what is fetched, built and stored."""
    return Path(os.environ.get(CACHE_ENV) or "/var/cache/minicluster-lab")


def run_folder() -> Path:
    """Return the folder of sockets and process files; fixed, since unix sockets' paths must be short."""
    return Path("/run/minilab")


def engine_folder() -> Path:
    """Return where the Docker Engine's packages are unpacked."""
    return cache_folder() / "engine"


def search_path() -> str:
    """Return PATH with the unpacked engine's programs first."""
    engine = engine_folder()
    rest = os.environ.get("PATH", "/usr/bin:/bin")
    return f"{engine}/usr/bin:{engine}/usr/sbin:{rest}:/usr/sbin:/sbin"
