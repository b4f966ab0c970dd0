"""The data set agent of all nodes: they see one folder, into which each data set is fetched once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minicluster_hub.engines.capabilities import DataAgents
from minicluster_hub.engines.local.data_agent import LocalDataAgent
from minicluster_hub.engines.node_tokens import NodeTokens


class SharedDataAgent(DataAgents):
    """Runs beside the job service. make: makes the agent of these nodes, known once Slurm answers."""

    def __init__(self, make: Callable[[Sequence[str]], LocalDataAgent]) -> None:
        self._make = make
        self._agent: LocalDataAgent | None = None

    def open(self, nodes: Sequence[str]) -> None:
        """Find the agent that runs."""
        self._agent = self._make(nodes)
        self._agent.open()

    def ensure_running(self, service_urls: tuple[str, ...], tokens: NodeTokens, *, needed: bool) -> None:
        if self._agent is not None:
            self._agent.ensure_running(service_urls, tokens, needed=needed)

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()
