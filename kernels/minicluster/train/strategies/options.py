"""The strategies of mc.prepare, and which options each of them takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from minicluster.errors import MiniclusterError

DDP = "ddp"
DIVIDING = ("fsdp", "tensor", "pipeline", "hybrid")
"""Strategies that divide a model among ranks."""
APART = ("localsgd", "diloco", "async")
"""Strategies in which each rank trains a whole model of its own between two averages."""

_TAKES: Mapping[str, tuple[str, ...]] = {
    DDP: (),
    "fsdp": ("plan", "mixed_precision", "activation_checkpointing", "cpu_offload"),
    "tensor": ("plan", "activation_checkpointing"),
    "pipeline": ("plan", "activation_checkpointing", "group_size", "microbatches", "schedule", "example"),
    "hybrid": ("plan", "mixed_precision", "activation_checkpointing", "cpu_offload", "group_size"),
    **dict.fromkeys(APART, ("period",)),
}
_INSTEAD = {
    "mixed_precision": "strategy='fsdp' has it; torch.autocast works with 'ddp'.",
    "cpu_offload": "strategy='fsdp' has it.",
    "period": "strategy='localsgd', 'diloco' and 'async' have it.",
}
SCHEDULES = ("1f1b", "gpipe")


class GivenOptions(TypedDict, total=False):
    """The options of mc.prepare besides `strategy`; see StrategyOptions."""

    plan: Any
    mixed_precision: Any
    activation_checkpointing: Any
    cpu_offload: Any
    group_size: int | None
    microbatches: int | None
    schedule: str | None
    example: Any
    period: int | None


class StrategyImpossible(MiniclusterError):
    """mc.prepare cannot divide this model, or not with these options."""


@dataclass(frozen=True)
class StrategyOptions:
    """What mc.prepare got besides model, optimizer and loader; None: not given."""

    plan: Any = None
    mixed_precision: Any = None
    activation_checkpointing: Any = None
    cpu_offload: Any = None
    group_size: int | None = None
    microbatches: int | None = None
    schedule: str | None = None
    example: Any = None
    period: int | None = None

    @classmethod
    def of(cls, strategy: str, given: Mapping[str, Any]) -> StrategyOptions:
        """Check a strategy and its options. Raises StrategyImpossible."""
        if strategy not in _TAKES:
            raise StrategyImpossible(
                f"mc.prepare() knows no strategy {strategy!r}.", f"There are: {', '.join(_TAKES)}."
            )
        options = cls(**given)
        wrong = [name for name in options.names if name not in _TAKES[strategy]]
        if wrong:
            takes = ", ".join(_TAKES[strategy]) or "no options"
            instead = " ".join(_INSTEAD[name] for name in wrong if name in _INSTEAD)
            raise StrategyImpossible(
                f"strategy={strategy!r} does not take {' and '.join(wrong)}.",
                f"It takes {takes}. {instead}".strip(),
            )
        options._check_values()
        return options

    @property
    def names(self) -> tuple[str, ...]:
        """The options that were given; False counts as not given."""
        return tuple(
            one.name
            for one in fields(self)
            if getattr(self, one.name) is not None and getattr(self, one.name) is not False
        )

    def _check_values(self) -> None:
        for name in ("group_size", "microbatches", "period"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise StrategyImpossible(f"{name}={value!r} is to be a whole number from 1 on.")
        if self.schedule is not None and self.schedule not in SCHEDULES:
            raise StrategyImpossible(
                f"schedule={self.schedule!r} is not known.", f"There are: {', '.join(SCHEDULES)}."
            )
