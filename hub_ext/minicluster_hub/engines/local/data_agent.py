"""The data set agent as a process of this machine: one for all its virtual nodes, while it is needed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from minicluster_hub.engines.capabilities import DataAgents
from minicluster_hub.engines.local.watch import ExitWatch, start_detached
from minicluster_hub.engines.node_tokens import NodeTokens
from minicluster_hub.support.processes import DATA_LABEL, find, labelled

MODULE = "minicluster.runtime.node.data_agent"
_LABEL = "MINICLUSTER_KEEPER_NODES"
_IDLE_S, _AGAIN_S = 120.0, 1.0


class LocalDataAgent(DataAgents):
    """Started when a job reads a data set; it ends by itself when none has for two minutes.

    nodes: for which it speaks. cache_bytes: most bytes of its cache, 0: what the disk has. environment: what
    it gets of the service's own.
    """

    def __init__(
        self,
        data: Path,
        python: str,
        nodes: Sequence[str],
        cache_bytes: int,
        environment: Mapping[str, str],
        log: logging.Logger,
        on_change: Callable[[], None],
    ) -> None:
        self.cache = data / "data-cache"
        self._data = data
        self._command = [python, "-m", MODULE]
        self._nodes = nodes
        self._environment = {
            **environment,
            DATA_LABEL: str(data),
            _LABEL: ",".join(nodes),
            "MINICLUSTER_DATA_CACHE": str(self.cache),
            "MINICLUSTER_DATA_CACHE_BYTES": str(cache_bytes),
            "MINICLUSTER_KEEPER_IDLE_S": str(_IDLE_S),
            "MINICLUSTER_READINGS": "0",  # The job service reads this machine itself.
        }
        self._log = log
        self._on_change = on_change
        self._watch: ExitWatch | None = None
        self._tried_at = 0.0

    def open(self) -> None:
        """Find the one that runs."""
        mine = labelled(**{DATA_LABEL: str(self._data)})
        for process in find(lambda env: mine(env) and _LABEL in env):
            self._follow(process.pid)

    def ensure_running(self, service_urls: tuple[str, ...], tokens: NodeTokens, *, needed: bool) -> None:
        """One that ends at once is not started again and again."""
        if not needed or self._watch is not None or time.monotonic() - self._tried_at < _AGAIN_S:
            return
        self._tried_at = time.monotonic()
        self.cache.mkdir(parents=True, exist_ok=True)
        token_file = self.cache / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(tokens.file(self._nodes))
        here = {"MINICLUSTER_SERVICE_URL": ",".join(service_urls), "MINICLUSTER_TOKEN_FILE": str(token_file)}
        try:
            pid = start_detached(self._command, {**self._environment, **here}, self.cache / "keeper.log")
        except OSError as error:
            self._log.error("the data set agent could not be started: %s", error)
        else:
            self._follow(pid)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _follow(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            self._watch = ExitWatch(pid, self._on_exit)

    def _on_exit(self, exit_code: int | None) -> None:
        self._watch = None
        if exit_code:
            self._log.warning("the data set agent ended (%s)", exit_code)
        asyncio.get_running_loop().call_later(_AGAIN_S, self._on_change)
