"""What a virtual rank has measured, and how it ended; a JSON file brings it to the notebook."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

CPU = "cpu"
"""The device of a rank that has no GPU."""


class Ended(StrEnum):
    """steps: its steps were made. cell: the cell was over before. limit: its time was over before."""

    STEPS = "steps"
    CELL = "cell"
    LIMIT = "limit"
    ERROR = "error"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)


class Collective(_Frozen):
    """at_s: since the step began. size_bytes: of the tensors. blocks: the rank waits for it at once."""

    at_s: float
    size_bytes: int
    blocks: bool = False


class Step(_Frozen):
    """One step, from the end of the one before to its optimizer's, without any time on the network."""

    seconds: float
    collectives: tuple[Collective, ...] = ()


class Sizes(_Frozen):
    """Bytes of what the optimizers and modules hold, each tensor once."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


class Traced(_Frozen):
    """Bytes of all tensors: peak of a step, and what is left after it."""

    peak: int
    left: int


class Epoch(_Frozen):
    """The loader that the first step drew from. shared: each rank takes its part of the samples.

    batches: what this rank takes in an epoch. samples: of all ranks. batch_size: None if it varies.
    """

    batches: int
    samples: int
    batch_size: int | None = None
    shared: bool = False


class RankFindings(_Frozen):
    """What one virtual rank found.

    steps: how many it made. times: the timed steps of each way to communicate ("alone": none; "average":
    weights are averaged in each step). device: where it ran. threads: of the CPU.
    growth_bytes: by how much the process grew at most; of a GPU, what torch's allocator had at most.
    distributed: the cell made a DistributedDataParallel. line: of the cell, where the limit found it.
    """

    rank: int
    ended: Ended
    steps: int = 0
    first_step_s: float = 0.0
    times: dict[str, tuple[Step, ...]] = {}
    device: str = ""
    threads: int = 1
    sizes: Sizes = Sizes()
    growth_bytes: int = 0
    base_bytes: int = 0
    traced: Traced | None = None
    epoch: Epoch | None = None
    distributed: bool = False
    own_hook: bool = False
    line: int | None = None
    error: dict[str, Any] | None = None
    world_size: int = 1
