"""The lab's base image: a small Debian with Python, made by debootstrap without a public registry."""

from __future__ import annotations

import shutil
from pathlib import Path

from .packages import locked
from .paths import cache_folder
from .processes import run

_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_LEFT_OUT = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/log",
)


def base_image_tar() -> Path:
    """Return the base image's file system as a tar file; make it on first use."""
    with locked("base"):
        tar = cache_folder() / "base.tar"
        if not tar.exists():
            _make(tar)
    return tar


def _make(tar: Path) -> None:
    folder = cache_folder() / "base"
    _remove(folder)
    packages = "--include=python3,python3-venv,ca-certificates"
    run("debootstrap", "--variant=minbase", packages, "bookworm", folder)
    # If this machine trusts its own certificate authority, builds must trust it, too.
    if _CERTIFICATES.exists():
        shutil.copy(_CERTIFICATES, folder / _CERTIFICATES.relative_to("/"))
    for name in _LEFT_OUT:
        run("sh", "-c", 'rm -rf "$0"/*', folder / name)
    unfinished = tar.with_suffix(".new")
    run("tar", "--numeric-owner", "-C", folder, "-cf", unfinished, ".")
    _remove(folder)
    unfinished.rename(tar)


def _remove(folder: Path) -> None:
    """Remove debootstrap's folder; an interrupted run has left the machine's /proc mounted in it."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed([place for place in mounted if place.startswith(f"{folder}/")]):
        run("umount", place)
    run("rm", "-rf", "--one-file-system", folder)
