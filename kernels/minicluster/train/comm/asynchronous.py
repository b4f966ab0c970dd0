"""Asynchronous training: no rank waits for another one's steps.

Each `period` steps, a rank sends the change of its weights to a server and goes on from the server's weights,
which have what all ranks have sent until then. So a slow rank holds up nobody, and its changes come late:
the asynchronous SGD of Dean et al., https://papers.nips.cc/paper/4687, with averages in the place of sums.
The server is a thread of the first rank.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from minicluster.train.comm.gradients import Peers
from minicluster.train.comm.weights import Chunk, LocalSteps, OuterStep, flat, put

_PATIENCE = timedelta(days=30)
"""How long a rank waits for the message of another one, which may be far behind. If that has ended, its
connection says so at once."""


class AsyncSteps(LocalSteps):
    """Lets a model's ranks train apart; each one exchanges its change when its own period is over.

    group_of_model: returns the process group of its ranks; a session may have another one after a cell that
    broke it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        peers: Peers,
        period: int,
        sent: torch.dtype,
        group_of_model: Callable[[], Any],
    ) -> None:
        super().__init__(model, peers, period, OuterStep(), sent)
        self._group_of_model = group_of_model
        self._connect()

    def _connect(self) -> None:
        """Make the groups, and on the first rank the server. All ranks call it."""
        self._world = dist.group.WORLD
        ranks = dist.get_process_group_ranks(self._group_of_model())
        # A server's answers must not mix with the training's own messages.
        self._group: Any = dist.new_group(ranks, backend="gloo", timeout=_PATIENCE)
        self._meeting: Any = dist.new_group(ranks, backend="gloo", timeout=_PATIENCE)
        first = self._peers.place == 0
        self._server = Server(self._chunks, self._peers.count, self._sent, self._group) if first else None

    def before_forward(self) -> None:
        """Exchange with the server if it is time for it.

        What the cell itself sets between two steps is a change like others: it goes to the server, too.
        """
        if self.is_due:
            self._exchange()

    def settle(self) -> bool:
        """Make the weights equal on all ranks, which all call this; return True: they may have differed."""
        self._exchange()
        # Nobody sends a change any more: what the server has now is for all.
        self._wait_for_all()
        self._exchange()
        self._average_buffers()
        self._wait_for_all()
        return True

    @torch.no_grad()
    def _exchange(self) -> None:
        """Give the server what this rank has changed, and go on from what it has."""
        if self._world is not dist.group.WORLD:
            self._connect()
        factor = 1.0 + self._factors / max(1, self._apart)
        for number, chunk in enumerate(self._chunks):
            change = (chunk.change() * factor).to(self._sent)
            if self._server is not None:
                fresh = self._server.take(number, change)
            else:
                dist.send(change.cpu(), group=self._group, group_dst=0)
                fresh = torch.empty(change.shape, dtype=chunk.dtype)
                dist.recv(fresh, group=self._group, group_src=0)
            chunk.replace(fresh)
        self._apart, self._factors = 0, 0.0

    def _average_buffers(self) -> None:
        for buffers in self._buffers:
            put(self._mean(flat(buffers), torch.float32), buffers)

    def _wait_for_all(self) -> None:
        dist.all_reduce(torch.zeros(1), group=self._meeting)


class Server:
    """The weights that all ranks' changes go into. exchanges: how many changes came."""

    def __init__(self, chunks: list[Chunk], ranks: int, sent: torch.dtype, group: Any) -> None:
        self.exchanges = 0
        self._weights = [chunk.weights.cpu().clone() for chunk in chunks]
        self._ranks = ranks
        self._sent = sent
        self._group = group
        self._lock = threading.Lock()
        for rank in range(1, ranks):
            # A daemon: it waits for a rank's next change as long as that rank may send one.
            threading.Thread(
                target=self._serve, args=(rank,), name=f"minicluster-server-{rank}", daemon=True
            ).start()

    def take(self, number: int, change: torch.Tensor) -> torch.Tensor:
        """Add a rank's share of a change to a chunk of weights; return what they are then."""
        with self._lock:
            weights = self._weights[number]
            weights.add_(change.to(weights.device, weights.dtype), alpha=1.0 / self._ranks)
            self.exchanges += 1
            return weights.clone()

    def _serve(self, rank: int) -> None:
        """Answer one rank until the process ends, or the rank does."""
        while True:
            for number, weights in enumerate(self._weights):
                change = torch.empty(weights.shape, dtype=self._sent)
                try:
                    dist.recv(change, group=self._group, group_src=rank)
                    dist.send(self.take(number, change), group=self._group, group_dst=rank)
                except RuntimeError:  # The rank has ended.
                    return
