"""Objects of training libraries that know the processes in which they were made; none is imported here."""

from __future__ import annotations

from typing import Any

SET_UP = "is set up for the processes in which it was made; move the line that makes it into the cell"
OF_ITS_PROCESSES = frozenset(
    {
        "accelerate.accelerator.Accelerator",
        "accelerate.state.AcceleratorState",
        "accelerate.state.GradientState",
        "accelerate.state.PartialState",
        "lightning.fabric.fabric.Fabric",
        "lightning.pytorch.trainer.trainer.Trainer",
        "lightning_fabric.fabric.Fabric",
        "pytorch_lightning.trainer.trainer.Trainer",
        "transformers.trainer.Trainer",
        "transformers.training_args.TrainingArguments",
    }
)
"""Sent to the ranks, they would train in each one alone, and say that they succeeded."""
_AROUND = {
    "accelerate.optimizer.AcceleratedOptimizer": "optimizer",
    "accelerate.scheduler.AcceleratedScheduler": "scheduler",
}


def plain_part(obj: object) -> Any:
    """Return the plain object that a library has put a wrapper around; None for all others."""
    for base in type(obj).__mro__:
        inside = _AROUND.get(f"{base.__module__}.{base.__qualname__}")
        if inside is not None:
            return getattr(obj, inside)
    return None


def line_to_move(name: str, obj: object) -> str:
    return f"`{name} = {type(obj).__name__}(...)`"
