"""`python -m minicluster_hub.policy.sandbox_server SOCKET FOLDER`: the program of the policy container.

Each connection to the socket gets a new process for a policy; when one ends, the server ends the other. The
server does not read their messages.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from minicluster_hub.policy.link import LinkLost, send
from minicluster_hub.policy.sandbox import end_child, how_ended, start_child

_MOST = 8
"""Most processes at once: one active, one on trial, and some that are ending."""


@dataclass(frozen=True)
class _Session:
    link: socket.socket
    child: subprocess.Popen[bytes]
    pidfd: int

    def close(self) -> None:
        """End the process; if it ended by itself, send the service its exit status."""
        ended = self.child.poll()
        end_child(self.child)
        if ended is not None:
            with contextlib.suppress(LinkLost, TimeoutError):
                send(self.link, {"ended": how_ended(ended)}, until=time.monotonic() + 0.1)
        self.link.close()
        os.close(self.pidfd)


class SandboxServer:
    """Starts and ends the processes. folder: of the policies' files."""

    def __init__(self, listening: socket.socket, folder: Path) -> None:
        self._listening = listening
        self._folder = folder
        self._sessions: dict[int, _Session] = {}
        self._poll = select.poll()
        self._poll.register(listening, select.POLLIN)

    def run(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._listening.fileno():
                    self._begin()
                elif fd in self._sessions:
                    self._end(self._sessions[fd])

    def _begin(self) -> None:
        link, _ = self._listening.accept()
        if len(self._sessions) >= 2 * _MOST:  # each session is listed under both of its files
            link.close()
            return
        child = start_child(link, self._folder)
        session = _Session(link, child, os.pidfd_open(child.pid))
        self._sessions[link.fileno()] = self._sessions[session.pidfd] = session
        self._poll.register(link, select.POLLRDHUP)
        self._poll.register(session.pidfd, select.POLLIN)

    def _end(self, session: _Session) -> None:
        for fd in (session.link.fileno(), session.pidfd):
            self._poll.unregister(fd)
            del self._sessions[fd]
        session.close()


def listen(path: Path) -> socket.socket:
    """Return the listening socket; this user and the group of its folder may connect."""
    path.unlink(missing_ok=True)
    os.umask(0o007)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(_MOST)
    return listening


def main() -> None:
    SandboxServer(listen(Path(sys.argv[1])), Path(sys.argv[2])).run()


if __name__ == "__main__":
    main()
