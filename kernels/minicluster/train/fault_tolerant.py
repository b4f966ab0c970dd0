"""mc.prepare in a fault-tolerant job: wraps model, optimizer and loader for `--fault-tolerant`.

This module imports torchft only in fault-tolerant jobs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from minicluster.errors import MiniclusterError
from minicluster.train.comm import rank as comm
from minicluster.train.live import settings

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from minicluster.train.live.session import LiveSession


class NoFaultTolerance(MiniclusterError):
    """A fault-tolerant job runs on an image that lacks torchft."""


def joins() -> bool:
    """Whether this rank was added to a running attempt."""
    return os.environ.get(settings.JOINS) == "1"


def wanted() -> bool:
    """Whether this is a rank of a fault-tolerant job."""
    return bool(os.environ.get(settings.LIGHTHOUSE))


def live() -> LiveSession:
    """Return this rank's session; the first call connects to the other ranks. Raises NoFaultTolerance."""
    try:
        from minicluster.train.live.session import session
    except ImportError as error:
        raise NoFaultTolerance(
            f"--fault-tolerant needs torchft, which this image lacks ({error}).",
            "Add torchft==0.2.0 to the image, or leave --fault-tolerant out.",
        ) from error
    return session()


def spread(model: torch.nn.Module, device: torch.device, bucket_mb: int) -> torch.nn.Module:
    """Wrap a model: its gradients are averaged over the participating ranks."""
    from minicluster.train.live.model import LiveModel

    session = live()
    devices = [device] if device.type == "cuda" else None
    return LiveModel(
        session,
        model,
        comm.followed(),
        device_ids=devices,
        bucket_cap_mb=bucket_mb,
        gradient_as_bucket_view=True,
    )


def wrapped(optimizer: Optimizer) -> Optimizer:
    """Wrap an optimizer: it takes a step only if all participating ranks can."""
    from minicluster.train.live.model import LiveOptimizer

    return optimizer if isinstance(optimizer, LiveOptimizer) else LiveOptimizer(live(), optimizer)


def share(loader: DataLoader[Any], options: dict[str, Any]) -> DataLoader[Any]:
    """Return a loader that divides the data among the participating ranks."""
    from minicluster.train.live.loader import LiveLoader

    return loader if isinstance(loader, LiveLoader) else LiveLoader(live(), loader, options)


def resume(from_snapshot: Callable[[], int], more: Mapping[str, Any]) -> int:
    """Return the step from which all ranks continue; if a peer is ahead, take its state and step.

    from_snapshot: loads this node's snapshot. more: further state that must be the same on all ranks.
    """
    session = live()
    for name, part in more.items():
        if hasattr(part, "state_dict"):
            session.keep(name, part.load_state_dict, part.state_dict)
    if not joins():
        session.resumed(from_snapshot())
    session.begin()
    return session.step
