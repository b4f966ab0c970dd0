"""The registry outside of the cluster, in place of docker.io."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from .paths import cache_folder
from .processes import end, process_of, start, wait_for

PORT = 5000


class OutsideRegistry:
    """docker-registry in the root namespace, at the lab's root address; all labs share its storage."""

    def __init__(self, folder: Path, address: str) -> None:
        self.host = f"{address}:{PORT}"
        self._address = address
        self._config = folder / "registry.json"
        self._record = folder / "registry"
        self._log = folder / "registry.log"

    @property
    def runs(self) -> bool:
        return process_of(self._record) is not None

    def start(self) -> None:
        """Start the registry and wait until it accepts connections."""
        if not self.runs:
            self._config.write_text(json.dumps(self._settings()))
            start(["docker-registry", "serve", self._config], self._record, self._log)
        wait_for(self._listens, f"the outside registry at {self.host}, see {self._log}", 20)

    def stop(self) -> None:
        """Stop the registry; its images remain."""
        end(self._record)

    def _settings(self) -> dict[str, object]:
        storage = {
            "filesystem": {"rootdirectory": str(cache_folder() / "registry")},
            "delete": {"enabled": True},
        }
        return {
            "version": "0.1",
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": storage,
            "http": {"addr": self.host},
        }

    def _listens(self) -> bool:
        try:
            socket.create_connection((self._address, PORT), timeout=1).close()
        except OSError:
            return False
        return self.runs
