"""One loader's shares: this rank's times of its steps, and how all ranks agree on what they ask for."""

from __future__ import annotations

import statistics
from collections import deque

import torch

from minicluster.train import place
from minicluster.train.balance.report import Report
from minicluster.train.balance.shares import Measured, Portion, Shares
from minicluster.train.balance.stopwatch import Lap
from minicluster.train.comm.gradients import Peers, told_by_all

WARM_STEPS, LEAST_LAPS = 2, 5
FIRST_STEPS = WARM_STEPS + LEAST_LAPS
LEAST_STEPS, MOST_STEPS = 10, 200
EVERY_S = 0.5
"""How often ranks agree: each time, they wait for each other, and a GPU for its CPU."""
_MEMORY = 0.9
"""Which part of a GPU's memory may be planned with: allocators leave gaps."""


class Balancer:
    """Divides the batches of one loader.

    All ranks agree in the same steps: in the first of each pass, and then after as many as each other. They
    do so even if the interrupt of a session's cell ended the pass before at different steps.
    """

    def __init__(self, total: int) -> None:
        self.shares = Shares(total, place.world_size())
        self._rank = place.rank()
        self._report = Report()
        self._drawn: deque[Portion] = deque()
        self._count = 0
        self._given = 0
        self._most_given = 0
        self._warm = 0
        self._laps: list[tuple[Lap, int]] = []
        self._until = 1

    def begin_pass(self) -> None:
        self.shares.begin_pass()
        self._drawn.clear()
        self._count = 0
        self._until = 1

    def draw(self, size: int) -> range:
        """Return which samples of the pass's next batch this rank loads. size: of the batch."""
        portion = self.shares.portion(self._count, size, self._rank)
        self._count += 1
        self._drawn.append(portion)
        return portion.samples

    def give(self) -> Portion:
        """Return what the batch has that the loader gives now; it gives them in the order of drawing."""
        self._given += 1
        portion = self._drawn.popleft()
        self._most_given = max(self._most_given, len(portion.samples))
        return portion

    def measured(self, lap: Lap, samples: int) -> None:
        """Remember how long this rank computed for some samples."""
        self._warm += 1
        if self._warm > WARM_STEPS:
            self._laps.append((lap, samples))

    def agree(self, peers: Peers, device: torch.device) -> None:
        """Exchange times if it is time for it, and change the shares if that pays. All ranks call this."""
        self._until -= 1
        if self._until:
            return
        own = [self._sample_s(), self._count, min(self._memory_for(device), 1e9)]
        table = told_by_all(peers, own, device)
        changed = self.shares.learn(
            [Measured(seconds, int(drawn), int(most)) for seconds, drawn, most in table]
        )
        self._until = LEAST_STEPS if changed else self._pause()
        if self._rank == 0 and self.shares.sample_s:
            self._report.found(self.shares, self._given, changed=changed)

    def _sample_s(self) -> float:
        """Return the typical time for a sample in the last steps; 0 if they were too few."""
        if len(self._laps) < LEAST_LAPS:
            return 0.0
        laps, self._laps = self._laps, []
        return statistics.median(lap.seconds / samples for lap, samples in laps)

    def _pause(self) -> int:
        """Return after how many steps the ranks agree again."""
        if not self.shares.sample_s:
            return FIRST_STEPS
        steps = EVERY_S / self.shares.step_s(self.shares.newest)
        return int(min(max(steps, LEAST_STEPS), MOST_STEPS))

    def _memory_for(self, device: torch.device) -> float:
        """Return how many samples fit into the memory, as far as one can tell from those that were there."""
        if device.type != "cuda":
            return float("inf")
        here = torch.cuda.memory_allocated(device)
        each = (torch.cuda.max_memory_allocated(device) - here) / self._most_given
        room = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - here
        return max(self._most_given, _MEMORY * room / max(each, 1.0))
