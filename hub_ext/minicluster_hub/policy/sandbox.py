"""Where custom policies run: each in its own process, on this machine or in the policy container."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_PASSED_ON = ("PATH", "LANG", "VIRTUAL_ENV")
"""The only environment variables that the process inherits; no token is among them."""
_FEW_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""One thread for each library: more threads would use up the process's memory limit."""


class SandboxUnavailable(Exception):
    """The policy container does not answer; no policy is to blame. The message is for administrators."""


class SandboxConnection(Protocol):
    """A link to one process of a policy. `stop` may be called from any thread, and interrupts a read."""

    link: socket.socket

    def stop(self) -> None: ...

    def close(self) -> str:
        """Stop the process. Return how it ended if it ended by itself; "" if that is unknown."""
        ...


class Sandbox(Protocol):
    def connect(self) -> SandboxConnection:
        """Start a process in which nothing is loaded yet. Raises SandboxUnavailable."""
        ...


@dataclass(frozen=True)
class ProcessSandbox:
    """Runs policies as processes of the same user on this machine. folder: the policies' files."""

    folder: Path | None = None

    def connect(self) -> SandboxConnection:
        ours, theirs = socket.socketpair()
        with theirs:
            return _ChildConnection(ours, start_child(theirs, self.folder))


@dataclass(frozen=True)
class ContainerSandbox:
    """The policy container. path: the socket at which sandbox_server listens."""

    path: Path

    def connect(self) -> SandboxConnection:
        link = socket.socket(socket.AF_UNIX)
        try:
            _connect(link, self.path)
        except OSError as error:
            link.close()
            reason = error.strerror or str(error)
            raise SandboxUnavailable(
                f"the container of the lab's own policies does not answer at {self.path} ({reason})"
            ) from error
        return _SocketConnection(link)


def start_child(link: socket.socket, folder: Path | None) -> subprocess.Popen[bytes]:
    """Start a policy's process. It inherits its end of the link, and no other file."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    fd, module = link.fileno(), "minicluster_hub.policy.sandbox_child"
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, f"{fd}", f"{os.getpid()}", f"{folder or ''}"],
        pass_fds=[fd],
        env={**environment, **_FEW_THREADS, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def end_child(child: subprocess.Popen[bytes]) -> int:
    """Kill a process and all that it has started; return its exit status."""
    if child.poll() is None:
        _kill_group(child)
    return child.wait()


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)


def how_ended(status: int) -> str:
    return f"with code {status}" if status >= 0 else f"by signal {-status}"


@dataclass
class _ChildConnection:
    link: socket.socket
    child: subprocess.Popen[bytes]
    stopped: bool = False

    def stop(self) -> None:
        self.stopped = True
        if self.child.returncode is None:
            _kill_group(self.child)
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)

    def close(self) -> str:
        self.link.close()
        if not self.stopped:
            # If it closed its end of the link, it is about to exit: wait for the status, which says why.
            with contextlib.suppress(subprocess.TimeoutExpired):
                return how_ended(self.child.wait(0.2))
        end_child(self.child)
        return ""


@dataclass
class _SocketConnection:
    """The server ends the process when the link is closed."""

    link: socket.socket

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)

    def close(self) -> str:
        self.stop()
        self.link.close()
        return ""


def _connect(link: socket.socket, path: Path) -> None:
    """Connect to the socket at this path, not through a symbolic link: policies can write to the folder."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        link.settimeout(1.0)
        link.connect(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
