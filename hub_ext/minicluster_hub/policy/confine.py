"""Limits the process of a custom policy: it may compute, and read its own files and packages.

The kernel enforces the limits. Python's audit hook refuses everything else, and names the line. Native code
can bypass the hook; on a cluster, the container stops such code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path

MEMORY_BYTES = 2 << 30
_MOST_FILES = 64
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_PROCESSES = re.compile(
    r"os\.(exec|fork|forkpty|kill|killpg|posix_spawn|spawn|system)|subprocess\.Popen|pty\.spawn"
)
_CHANGES = re.compile(
    r"os\.(chmod|chown|link|mkdir|putenv|remove|rename|rmdir|setxattr|symlink|truncate|utime)|shutil\..*"
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/etc/localtime",
    "/dev/null",
    "/dev/urandom",
    "/proc/self",
    "/proc/meminfo",
)


def confine(folder: Path | None) -> None:
    """Drop for good all rights that no policy needs. folder: the lab's policies; it stays readable."""
    limits = {
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: _MOST_FILES,
        resource.RLIMIT_NPROC: 0,
    }
    for which, limit in limits.items():
        resource.setrlimit(which, (limit, limit))
    # No network, and no access to other processes of this user. Some kernels do not let users do this.
    if sys.platform == "linux":
        ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NETWORK)
    sys.dont_write_bytecode = True
    sys.addaudithook(_refusing(_readable(folder)))


def _readable(folder: Path | None) -> tuple[str, ...]:
    """Return the readable paths: Python's own files, installed packages, the lab's policies."""
    paths = (*sys.path, sys.prefix, sys.base_prefix, *_SYSTEM, *((str(folder),) if folder else ()))
    return tuple({os.path.realpath(path) for path in paths if path} | {"/proc/self", "/dev/null"})


def _refusing(readable: tuple[str, ...]) -> Callable[[str, tuple[object, ...]], None]:
    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if _PROCESSES.fullmatch(event):
            raise PermissionError("a policy may start no process")
        if event.startswith("socket."):
            raise PermissionError("a policy has no network")
        if _CHANGES.fullmatch(event):
            raise PermissionError("a policy may change no file")
        if event == "open":
            _check_open(arguments, readable)

    return refuse


def _check_open(arguments: tuple[object, ...], readable: tuple[str, ...]) -> None:
    path, mode, flags = arguments
    if not isinstance(path, str | bytes):
        return
    changes = isinstance(flags, int) and flags & _WRITES
    if os.fspath(path) != "/dev/null" and (changes or set(str(mode or "")) & set("wax+")):
        raise PermissionError("a policy may change no file")
    with contextlib.suppress(ValueError):
        real = os.path.realpath(os.fsdecode(path))
        if not any(real == one or real.startswith(f"{one}/") for one in readable):
            raise PermissionError(f"a policy may read its own folder and installed packages, not {real}")
