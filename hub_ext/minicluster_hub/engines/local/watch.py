"""Starts processes that outlive the service; reports when any process ends, also one of others."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"


def start_detached(command: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path | None = None) -> int:
    """Start a process in a session of its own, its output added to `log`; return its pid. Raises OSError.

    Returns once the process runs, in about 1 ms.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # ExitWatch collects the exit status. A Popen that is garbage-collected must neither warn nor wait.
    process.returncode = 0
    return process.pid


class ExitWatch:
    """Calls `on_exit(exit_code)` in the event loop when the process `pid` ends.

    The exit code is None where the process is not our child. Linux's pidfd gives the event.
    """

    def __init__(self, pid: int, on_exit: Callable[[int | None], None]) -> None:
        self._pid = pid
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = os.pidfd_open(pid)
        self._loop.add_reader(self._fd, self._collect)

    def close(self) -> None:
        """Stop watching."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def finish(self) -> None:
        """Collect the exit status now, of a process that is known to be dead."""
        if self._fd is not None:
            self._collect()

    def _collect(self) -> None:
        self.close()
        exit_code = None
        with suppress(ChildProcessError):
            _, status = os.waitpid(self._pid, 0)
            exit_code = os.waitstatus_to_exitcode(status)
        self._on_exit(exit_code)
