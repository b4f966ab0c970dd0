"""Where a lab's own policies run: each in a process of its own, here or in the policy container."""

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
"""All of the variables here that the process gets: a service's token is not among them."""
_FEW_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Each thread of theirs takes of the memory that there is for the process."""


class SandboxAway(Exception):
    """Nobody is there who could run a policy; no policy is to blame. The message is for administrators."""


class Connection(Protocol):
    """One process of a policy. `stop` may be called from any thread, and ends what is being read."""

    link: socket.socket

    def stop(self) -> None: ...

    def close(self) -> str:
        """Stop it, let go of it, and return how it had ended by itself, "" if that is not known."""
        ...


class Sandbox(Protocol):
    def connect(self) -> Connection:
        """Return a new process, in which nothing is loaded yet. Raises SandboxAway."""
        ...


@dataclass(frozen=True)
class ProcessSandbox:
    """Processes of this machine, with the user that this one has. folder: of the policies' files."""

    folder: Path | None = None

    def connect(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            return _ChildConnection(ours, start_child(theirs, self.folder))


@dataclass(frozen=True)
class ContainerSandbox:
    """The policy container, by the socket at which sandbox_server listens."""

    path: Path

    def connect(self) -> Connection:
        link = socket.socket(socket.AF_UNIX)
        try:
            _connect(link, self.path)
        except OSError as error:
            link.close()
            reason = error.strerror or str(error)
            raise SandboxAway(
                f"the container of the lab's own policies does not answer at {self.path} ({reason})"
            ) from error
        return _SocketConnection(link)


def start_child(link: socket.socket, folder: Path | None) -> subprocess.Popen[bytes]:
    """Start the process of a policy at its end of a link: it has no other file of ours."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    fd = link.fileno()
    return subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "minicluster_hub.policy.sandbox_child",
            f"{fd}",
            f"{os.getpid()}",
            f"{folder or ''}",
        ],
        pass_fds=[fd],
        env={**environment, **_FEW_THREADS, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def end_child(child: subprocess.Popen[bytes]) -> int:
    """Kill a process with whatever it has started; return its exit status."""
    if child.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


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
            with contextlib.suppress(OSError):
                os.killpg(self.child.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)

    def close(self) -> str:
        self.link.close()
        if not self.stopped:
            # One whose end of the link is closed is about to be over: by itself, if it is left alone.
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
    """Connect to that very socket: policies own the folder, and a link in it may lead to any other one."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        link.settimeout(1.0)
        link.connect(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
