"""Loaders of mc.prepare() after a cell that some ranks did not complete."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist


def agree_on_loaders() -> None:
    """Have the next loop over each loader take the same epoch, divided alike, on all ranks; all call this.

    When an interrupt came, a rank may have begun an epoch or learned new shares of a batch, and another not.
    """
    if not dist.is_initialized():
        return
    module = sys.modules.get("minicluster.train.loaders")
    loaders = module.loaders_made() if module else {}
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, {number: loader.next_loop for number, loader in loaders.items()})
    for number, loader in loaders.items():
        next_loops = {of_rank.get(number) for of_rank in told}
        if len(next_loops) > 1 and None not in next_loops:
            loader.begin_anew(max(epoch for epoch, _ in next_loops))
