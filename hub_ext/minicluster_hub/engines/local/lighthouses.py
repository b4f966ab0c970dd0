"""The lighthouses of fault-tolerant jobs as processes of this machine, found again after a restart."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from minicluster_hub.engines.base import LighthouseRefused
from minicluster_hub.engines.capabilities import Lighthouses
from minicluster_hub.engines.local.watch import LOOPBACK, ExitWatch, start_detached
from minicluster_hub.jobs.records import LighthouseView
from minicluster_hub.support.processes import DATA_LABEL, find, labelled, signal_all, wait_gone

GANG_LABEL = "MINICLUSTER_LIGHTHOUSE_GANG"
MODULE = "minicluster.runtime.lighthouse"
_KILL_TIMEOUT_S = 5.0


class LocalLighthouses(Lighthouses):
    """One process per gang. A file has a gang's port, so that one that is started again is at the same
    address.

    environment: what they get of the service's own. host: where the ranks reach them.
    """

    def __init__(
        self,
        data: Path,
        python: str,
        environment: Mapping[str, str],
        log: logging.Logger,
        on_change: Callable[[], None],
        host: str = LOOPBACK,
    ) -> None:
        self._folder = data / "lighthouses"
        self._host = host
        self._command = [python, "-m", MODULE, "--bind"]
        self._label = {DATA_LABEL: str(data)}
        self._environment = {**environment, **self._label}
        self._log = log
        self._on_change = on_change
        self._views: dict[int, LighthouseView] = {}
        self._watches: dict[int, ExitWatch] = {}

    def open(self) -> None:
        """Find those that run, and those that ran."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob("*.port"):
            gang_id = int(path.stem)
            self._views[gang_id] = LighthouseView(gang_id, f"{self._host}:{path.read_text()}", alive=False)
        for process in find(labelled(**self._label)):
            with suppress(psutil.NoSuchProcess):
                gang_id = int(process.environ().get(GANG_LABEL, "0"))
                if gang_id in self._views:
                    self._watch(gang_id, process.pid)

    def views(self) -> Mapping[int, LighthouseView]:
        return self._views

    async def start(self, gang_id: int) -> None:
        if gang_id in self._watches:
            return
        address = f"{self._host}:{self._port(gang_id)}"
        environment = {**self._environment, GANG_LABEL: str(gang_id)}
        try:
            pid = start_detached([*self._command, address], environment, self._log_file(gang_id))
        except OSError as error:
            raise LighthouseRefused(f"the lighthouse could not be started: {error}") from error
        self._views[gang_id] = LighthouseView(gang_id, address, alive=True)
        self._watch(gang_id, pid)

    async def end(self, gang_id: int) -> None:
        watch = self._watches.pop(gang_id, None)
        found = find(labelled(**self._label, **{GANG_LABEL: str(gang_id)}))
        signal_all(found)
        await asyncio.to_thread(wait_gone, found, _KILL_TIMEOUT_S)
        if watch is not None:
            watch.finish()
        self._views.pop(gang_id, None)
        self._port_file(gang_id).unlink(missing_ok=True)
        self._log_file(gang_id).unlink(missing_ok=True)

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    def _port_file(self, gang_id: int) -> Path:
        return self._folder / f"{gang_id}.port"

    def _log_file(self, gang_id: int) -> Path:
        return self._folder / f"{gang_id}.log"

    def _port(self, gang_id: int) -> int:
        path = self._port_file(gang_id)
        if path.exists():
            return int(path.read_text())
        with socket.create_server((self._host, 0)) as free:
            port = free.getsockname()[1]
        temporary = path.with_suffix(".new")
        temporary.write_text(str(port))
        temporary.replace(path)
        return port

    def _watch(self, gang_id: int, pid: int) -> None:
        self._views[gang_id] = LighthouseView(gang_id, self._views[gang_id].address, alive=True)
        try:
            self._watches[gang_id] = ExitWatch(pid, lambda code: self._on_exit(gang_id, code))
        except ProcessLookupError:
            self._on_exit(gang_id, None)

    def _on_exit(self, gang_id: int, exit_code: int | None) -> None:
        self._watches.pop(gang_id, None)
        view = self._views.get(gang_id)
        if view is None:
            return
        lines: list[str] = []
        with suppress(OSError):
            lines = self._log_file(gang_id).read_text(errors="replace").splitlines()
        detail = lines[-1] if lines else ""
        self._log.warning("the lighthouse of gang %s ended (%s): %s", gang_id, exit_code, detail or "no word")
        self._views[gang_id] = LighthouseView(gang_id, view.address, alive=False, detail=detail)
        self._on_change()
