"""The first process of a lab machine, run as a script: it sets up the machine, then reaps orphans.

Its process namespace ends with it, so killing it is like pulling the power cord.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


def main(folder: Path, hostname: str) -> None:
    """Set up the machine with this folder, write its record, and reap orphaned processes."""
    # /proc is still that of the outer namespace, so the record has this process's outer id.
    record = Path("/proc/self/stat").read_text()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    socket.sethostname(hostname)
    make_own_run(folder)
    mount("-t", "proc", "proc", "/proc")
    # Write the record atomically: once it exists, the machine is set up.
    (folder / "first.new").write_text(record)
    (folder / "first.new").rename(folder / "first")
    while True:
        signal.sigwait({signal.SIGCHLD})
        reap()


def make_own_run(folder: Path) -> None:
    """Mount an empty /run, which shares only the machine's folder with the outer /run."""
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
