"""The first process of a lab machine, run as a script: it makes what a machine has of its own, then reaps.

Its process namespace ends with it, so that killing it is pulling the power cord.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


def main(folder: Path, hostname: str) -> None:
    """Set up the machine whose folder this is, say so, and collect the processes that lose their parents."""
    # /proc is still the outer one here: the record holds the id by which others know this process.
    record = Path("/proc/self/stat").read_text()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    socket.sethostname(hostname)
    make_own_run(folder)
    mount("-t", "proc", "proc", "/proc")
    # The record is written in one step: who finds it finds a finished machine.
    (folder / "first.new").write_text(record)
    (folder / "first.new").rename(folder / "first")
    while True:
        signal.sigwait({signal.SIGCHLD})
        reap()


def make_own_run(folder: Path) -> None:
    """Put an empty /run in place of the outer one, in which only the machine's folder is the outer one's."""
    resolver = Path("/etc/resolv.conf").resolve()
    servers = resolver.read_bytes() if resolver.exists() else b""
    mount("--bind", folder, "/mnt")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    folder.mkdir(parents=True)
    mount("--move", "/mnt", folder)
    if not resolver.exists():
        resolver.parent.mkdir(parents=True, exist_ok=True)
        resolver.write_bytes(servers)


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
