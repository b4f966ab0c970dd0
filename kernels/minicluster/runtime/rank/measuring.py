"""What each rank sends without a word of the cell: step times, and what it writes for TensorBoard."""

from __future__ import annotations

from minicluster.runtime.rank.imports import after_import
from minicluster.train.metrics import sending, step_times, tensorboard


def profile(steps: int) -> None:
    """Have the next steps of the cell's training profiled: the run's page asks for it."""
    from minicluster.train.metrics.profile import profile_next

    profile_next(steps)


def prepare() -> None:
    """Begin to measure in this process."""
    sending.begin()
    step_times.install()
    folders = tensorboard.Folders()
    for name in tensorboard.MODULES:
        after_import(name, lambda module: tensorboard.follow(module, folders))
