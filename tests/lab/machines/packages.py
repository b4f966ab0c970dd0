"""Debian 13's Docker Engine, downloaded and unpacked beside the machine's packages, not installed.

Debian 12's engine (20.10) rejects a service that has both a generic resource and a network. runc is the
machine's, since Debian 13's needs a newer C library.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .paths import cache_folder, engine_folder
from .processes import run

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCE = f"deb [signed-by={KEYS}] http://deb.debian.org/debian trixie main\n"
PACKAGES = ("docker.io", "docker-cli", "containerd", "tini")
NEEDED = {
    "runc": "runc",
    "ip": "iproute2",
    "tc": "iproute2",
    "iptables": "iptables",
    "debootstrap": "debootstrap",
    "docker-registry": "docker-registry",
    "apt-get": "apt",
    "losetup": "mount",
    "nsenter": "util-linux",
    "mkfs.ext4": "e2fsprogs",
}
"""Required programs, and the Debian packages that contain them."""


def missing() -> str | None:
    """Return why this machine cannot run a lab, as the reason of a skipped test."""
    if os.uname().sysname != "Linux" or os.getuid() != 0:
        return "the lab needs Linux and root: it makes network namespaces and starts Docker Engines"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    lacking = sorted({package for program, package in NEEDED.items() if not shutil.which(program, path=path)})
    if lacking:
        return f"the lab needs programs of Debian 12: apt-get install {' '.join(lacking)}"
    return None


def fetch() -> Path:
    """Download and unpack the engine's packages into the cache; return their folder."""
    with locked("fetch"):
        if not engine_folder().is_dir():
            _unpack(_download())
    return engine_folder()


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Lock a part of the cache, so that one process at a time writes it."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download() -> Path:
    folder = cache_folder() / "apt"
    for part in ("lists/partial", "cache/archives/partial", "debs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(SOURCE)
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        # The download folders are writable only for root.
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    run(*apt, "update")
    debs = folder / "debs"
    run("sh", "-c", 'cd "$0" && exec "$@"', debs, *apt, "download", *PACKAGES)
    return debs


def _unpack(debs: Path) -> None:
    unfinished = engine_folder().with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    for package in PACKAGES:
        newest = max(debs.glob(f"{package}_*.deb"), key=lambda path: path.stat().st_mtime)
        run("dpkg", "-x", newest, unfinished)
    unfinished.rename(engine_folder())
