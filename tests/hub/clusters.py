"""Real clusters for tests: the program of `./run` as a child process, with its own port and data folder."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from minicluster_hub.support.processes import find, of_data_folder, signal_all

from ..processes import runs

START_LIMIT_S = 60.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "minicluster_hub.launch", *arguments]


def run(*arguments: str, timeout_s: float = START_LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=timeout_s, check=False)


class RunningCluster:
    """A started cluster; `words` is its output up to the end of its start."""

    def __init__(self, data: Path, *arguments: str, port: int | None = None) -> None:
        self.data = data
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        started = time.monotonic()
        self.process = subprocess.Popen(
            command("--data", str(data), "--port", str(self.port), *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.words = self._read_until("Ctrl-C ends")
        self.start_s = time.monotonic() - started

    def _read_until(self, text: str) -> str:
        """Read its output up to a line with the text. Raises AssertionError if the cluster ends before."""
        message = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message += line
            if text in line:
                return message
        raise AssertionError(f"the cluster ended with exit code {self.process.wait()}:\n{message}")

    @property
    def password(self) -> str:
        found = re.search(r"password  ([a-z-]+)   \(shown only now\)", self.words)
        assert found, f"no password in:\n{self.words}"
        return found.group(1)

    def add_user(self, name: str) -> str:
        """Create a user while the cluster runs; return the password."""
        result = run("--data", str(self.data), "--add-user", name)
        assert result.returncode == 0, result.stderr
        return result.stdout.split("password")[1].split()[0]

    def processes(self) -> list[psutil.Process]:
        """Return all running processes with this cluster's label."""
        return find(of_data_folder(self.data))

    def hub(self) -> psutil.Process:
        return next(one for one in self.processes() if runs(one, "minicluster_hub.launch.hub"))

    def end(self, number: int = signal.SIGINT, timeout_s: float = START_LIMIT_S) -> int:
        """Send a signal; return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=timeout_s)
        self.words += rest
        return self.process.returncode

    def kill(self) -> None:
        """End the cluster in any case, at the end of a test."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        signal_all(self.processes())
