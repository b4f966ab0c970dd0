"""Runs pip as a program: shows its output as it is printed, and takes the cause of a failure from it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from minicluster.errors import MiniclusterError
from minicluster.wire import Pin

_QUIET = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--no-warn-script-location")


class PipFailed(MiniclusterError):
    """pip could not install a package; the message is pip's."""


def install_command(pins: Sequence[Pin], *options: str) -> list[str]:
    """Return the command that installs exactly these packages, without their dependencies."""
    wanted = [pin.requirement for pin in pins]
    return [sys.executable, "-m", "pip", "install", "--no-deps", *_QUIET, *options, *wanted]


def install(
    pins: Sequence[Pin], user_base: Path, report: Path, environ: Mapping[str, str] = os.environ
) -> None:
    """Install packages below `user_base`, as with --user, and show pip's output. Raises PipFailed."""
    options = ("--user", "--no-compile", "--no-cache-dir", "--report", str(report))
    command = install_command(pins, *options)
    lines: list[str] = []
    with subprocess.Popen(
        command,
        env={**environ, "PYTHONUSERBASE": str(user_base)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101
        for line in process.stdout:
            print(line, end="", flush=True)  # noqa: T201 - the job's output
            lines.append(line)
    if process.returncode:
        raise PipFailed(failing_line(lines), HINT)


HINT = "The same works here: %pip install it again, or choose a version that the index has."


def failing_line(lines: Sequence[str]) -> str:
    """Return the line of pip's output that says what failed."""
    texts = [line.strip() for line in lines if line.lstrip().lower().startswith("error:")]
    rest = [line.strip() for line in lines if line.strip()]
    return next(iter(texts or rest[-1:]), "pip ended without a word")
