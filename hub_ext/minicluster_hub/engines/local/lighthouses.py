"""The lighthouses of fault-tolerant jobs as processes of this machine, found again after a restart."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from minicluster_hub.engines.base import LighthouseRefused
from minicluster_hub.engines.local.devices import LOOPBACK
from minicluster_hub.engines.local.watch import ExitWatch, start_apart
from minicluster_hub.jobs.records import LighthouseView
from minicluster_hub.support.processes import DATA_LABEL, find, labelled, wait_gone

GANG_LABEL = "MINICLUSTER_LIGHTHOUSE_GANG"
MODULE = "minicluster.runtime.lighthouse"
_PATIENCE_S = 5.0


class LocalLighthouses:
    """One process per gang. A gang's port is kept in a file: one that was started again is found there."""

    def __init__(self, data: Path, python: str, log: logging.Logger, on_change: Callable[[], None]) -> None:
        self._data = data
        self._folder = data / "lighthouses"
        self._python = python
        self._log = log
        self._on_change = on_change
        self._views: dict[int, LighthouseView] = {}
        self._watches: dict[int, ExitWatch] = {}

    def open(self) -> None:
        """Find those that run, and those that ran."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob("*.port"):
            gang_id = int(path.stem)
            self._views[gang_id] = LighthouseView(gang_id, f"{LOOPBACK}:{path.read_text()}", alive=False)
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                gang_id = int(process.environ()[GANG_LABEL])
                if gang_id in self._views:
                    self._watch(gang_id, process.pid)

    def all(self) -> Mapping[int, LighthouseView]:
        return self._views

    def start(self, gang_id: int, environment: Mapping[str, str]) -> None:
        """Start a gang's lighthouse, at the address that it had before. Raises LighthouseRefused."""
        if gang_id in self._watches:
            return
        port = self._port(gang_id)
        try:
            pid = start_apart(
                [self._python, "-m", MODULE, "--bind", f"{LOOPBACK}:{port}"],
                {**environment, DATA_LABEL: str(self._data), GANG_LABEL: str(gang_id)},
                self._folder / f"{gang_id}.log",
            )
        except OSError as error:
            raise LighthouseRefused(f"the lighthouse could not be started: {error}") from error
        self._views[gang_id] = LighthouseView(gang_id, f"{LOOPBACK}:{port}", alive=True)
        self._watch(gang_id, pid)

    async def end(self, gang_id: int) -> None:
        """Kill a gang's lighthouse and forget its address."""
        watch = self._watches.pop(gang_id, None)
        found = self._processes(gang_id)
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(wait_gone, found, _PATIENCE_S)
        if watch is not None:
            watch.finish()
        self._views.pop(gang_id, None)
        for suffix in ("port", "log"):
            (self._folder / f"{gang_id}.{suffix}").unlink(missing_ok=True)

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    def _processes(self, gang_id: int | None = None) -> list[psutil.Process]:
        mine = labelled(**{DATA_LABEL: str(self._data)})
        wanted = None if gang_id is None else str(gang_id)
        return find(
            lambda env: mine(env) and GANG_LABEL in env and (wanted is None or env[GANG_LABEL] == wanted)
        )

    def _port(self, gang_id: int) -> int:
        path = self._folder / f"{gang_id}.port"
        if path.exists():
            return int(path.read_text())
        with socket.create_server((LOOPBACK, 0)) as free:
            port = free.getsockname()[1]
        temporary = path.with_suffix(".new")
        temporary.write_text(str(port))
        temporary.replace(path)
        return port

    def _watch(self, gang_id: int, pid: int) -> None:
        view = self._views[gang_id]
        self._views[gang_id] = LighthouseView(gang_id, view.address, alive=True)
        try:
            self._watches[gang_id] = ExitWatch(pid, lambda code: self._ended(gang_id, code))
        except ProcessLookupError:
            self._ended(gang_id, None)

    def _ended(self, gang_id: int, exit_code: int | None) -> None:
        self._watches.pop(gang_id, None)
        view = self._views.get(gang_id)
        if view is None:
            return
        detail = self._last_words(gang_id)
        self._log.warning("the lighthouse of gang %s ended (%s): %s", gang_id, exit_code, detail or "no word")
        self._views[gang_id] = LighthouseView(gang_id, view.address, alive=False, detail=detail)
        self._on_change()

    def _last_words(self, gang_id: int) -> str:
        with suppress(OSError):
            lines = (self._folder / f"{gang_id}.log").read_text(errors="replace").splitlines()
            return lines[-1] if lines else ""
        return ""
