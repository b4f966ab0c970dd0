"""The hub as a child process: started in its own session, watched, and ended with everything it started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from minicluster_hub.engines.local.task_memory import TaskMemory
from minicluster_hub.launch.errors import HubEnded, Stopped
from minicluster_hub.launch.hub import READY_FD
from minicluster_hub.launch.signals import END, Signals
from minicluster_hub.settings import Settings
from minicluster_hub.support.processes import (
    SERVER_LABEL,
    TASK_LABEL,
    die_with_parent,
    end_all,
    of_data_folder,
)

_START_LIMIT_S = 90.0
_HUB_GRACE_S = 10.0
_LOG_KEPT_BYTES = 2**23


class HubProcess:
    """One start of the hub on one data folder."""

    def __init__(self, settings: Settings, config: Path) -> None:
        self.settings = settings
        self.log = settings.data_dir / "hub" / "hub.log"
        self._config = config
        self._child: subprocess.Popen[bytes] | None = None
        self._ready_fd = -1

    def start(self) -> None:
        """Start the hub. It writes its output to a file, and to a pipe when it is ready."""
        parent = os.getpid()
        self._ready_fd, child_fd = os.pipe()
        os.set_blocking(self._ready_fd, False)
        with self._open_log() as log:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "minicluster_hub.launch.hub", "-f", str(self._config)],
                cwd=self.settings.data_dir / "hub",
                env={**os.environ, **self._environment(), READY_FD: str(child_fd)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=0o077,
                start_new_session=True,
                pass_fds=[child_fd],
                preexec_fn=lambda: die_with_parent(parent),
            )
        os.close(child_fd)

    def _environment(self) -> dict[str, str]:
        programs = str(Path(sys.executable).parent)
        path = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
        settings = self.settings.environment()
        return {**settings, **_smaller(os.environ), "PATH": path, "PYTHONUNBUFFERED": "1"}

    def _open_log(self) -> IO[bytes]:
        if self.log.exists() and self.log.stat().st_size > _LOG_KEPT_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        return self.log.open("ab")

    def wait_ready(self, signals: Signals) -> None:
        """Return when the hub answers browsers. Raises HubEnded or Stopped."""
        deadline = time.monotonic() + _START_LIMIT_S
        while not self._is_ready():
            self._check(signals.wait(deadline - time.monotonic(), self._ready_fd))
            if time.monotonic() > deadline:
                raise HubEnded(f"The hub was not ready after {_START_LIMIT_S:.0f} s.\n{self.last_lines()}")

    def _is_ready(self) -> bool:
        try:
            text = os.read(self._ready_fd, 16)
        except BlockingIOError:
            return False
        if not text and self._child is not None:
            # The pipe closes a moment before the process has an exit code.
            self._child.wait(_HUB_GRACE_S)
        return bool(text)

    def wait_end(self, signals: Signals) -> None:
        """Sleep until the hub ends (raises HubEnded) or an end signal comes (raises Stopped)."""
        while True:
            self._check(signals.wait(None))

    def _check(self, signals: set[int]) -> None:
        if signals & END:
            raise Stopped
        if self._child is not None and self._child.poll() is not None:
            code = self._child.returncode
            raise HubEnded(f"The hub ended by itself (exit code {code}).\n{self.last_lines()}")

    def last_lines(self, count: int = 15) -> str:
        """Return the end of the hub's log, with the path of the log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = "\n".join(f"  {line}" for line in text.splitlines()[-count:])
        return f"The last lines of {self.log}:\n{lines}"

    def stop(self) -> None:
        """End the hub with its proxy and service, then all other processes of this data folder."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(_HUB_GRACE_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
        end_all(of_data_folder(self.settings.data_dir), 3.0)
        TaskMemory(self.settings.data_dir.resolve() / "tasks").sweep(())
        if self._child is not None:
            self._child.wait()


def _smaller(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables that save memory (bench/idle.py). The user's own values of them win.

    MALLOC_TRIM_THRESHOLD_: makes glibc return freed memory; the hub takes 115 MB, not 131. A fixed value
    keeps glibc from raising the threshold. NODE_OPTIONS: Node.js reserves 16 MB for each half of its young
    objects; with 1 MB the proxy takes 67 MB, not 82, after a JupyterLab page.
    """
    node = f"--max-semi-space-size=1 {env.get('NODE_OPTIONS', '')}".strip()
    return {
        "MALLOC_TRIM_THRESHOLD_": env.get("MALLOC_TRIM_THRESHOLD_", str(2**17)),
        "NODE_OPTIONS": node,
    }


def end_left_over(data_dir: Path) -> None:
    """End hub, proxy and service of a `./run` that was killed. Notebook servers and tasks keep running."""
    ours = of_data_folder(data_dir)
    end_all(lambda env: ours(env) and TASK_LABEL not in env and SERVER_LABEL not in env, 2.0)
    # Another process may have this id by now, and the hub would kill it.
    (data_dir / "hub" / "proxy.pid").unlink(missing_ok=True)
