"""A user's packages on a task (`--sync-env`): installed before the ranks start, beside the image's own.

They stay for the next cells on the same gang: the folder's name says what is in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from minicluster.capture.payload import head_of
from minicluster.publishing.pip import HINT, PipFailed, failing_line, install_command
from minicluster.wire import Pin


def folder_of(scratch: Path, packages: Sequence[str]) -> Path:
    """Return the folder of these packages on a task."""
    digest = hashlib.sha256("\n".join(packages).encode()).hexdigest()
    return scratch / f"packages-{digest[:16]}"


async def install(payload: Path, scratch: Path, env: Mapping[str, str]) -> None:
    """Install a cell's packages, unless they are installed. env: of the ranks. Raises PipFailed."""
    packages = head_of(payload).get("packages") or ()
    folder = folder_of(scratch, packages)
    if not packages or folder.is_dir():
        return
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    pins = [Pin.model_validate_json(one) for one in packages]
    command = install_command(pins, "--target", str(fresh), "--no-cache-dir")
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **{name: value for name, value in env.items() if name.startswith("PIP_")}},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        printed, _ = await process.communicate()
    finally:
        # If it was cancelled; processes that pip started end with the attempt.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        raise PipFailed(failing_line(printed.decode(errors="replace").splitlines()), HINT)
    fresh.rename(folder)
