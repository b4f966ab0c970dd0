"""A model as a sequence of parts, each of which takes what the one before it gives: what a pipeline needs.

Whether a model is one is not guessed: an example goes through it, and the parts must hand on the very same
tensors. What a model's own forward does in between would be lost, so it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader

from minicluster.train.snapshots.state import random_states, set_random_states
from minicluster.train.strategies.options import StrategyImpossible
from minicluster.train.strategies.plans import matching, shared_parameters, size_of

_LISTS = (nn.ModuleList, nn.ModuleDict)


def part_names(model: nn.Module) -> list[str]:
    """Return the names of the parts that a model's own forward would call one after the other."""
    found: list[str] = []
    for name, child in model.named_children():
        if type(child) is nn.Sequential or isinstance(child, _LISTS):
            found += [f"{name}.{inner}" for inner in part_names(child)]
        else:
            found.append(name)
    return found


class Call(NamedTuple):
    """A part's call: what went in, and what came out."""

    name: str
    given: tuple[Any, ...]
    named: Mapping[str, Any]
    output: Any


def sequence_of(model: nn.Module, example: Any) -> list[str]:
    """Return the names of a model's parts in the order in which they are called.

    example: what the model gets for a sample or a few; None: not known, which does for an nn.Sequential.
    Raises StrategyImpossible if the parts are no sequence.
    """
    names = part_names(model)
    if type(model).forward is nn.Sequential.forward:
        return names
    if example is None:
        raise StrategyImpossible(
            f"How the parts of a {type(model).__name__} follow one another is not known.",
            "Give mc.prepare() the loader, too, or example=inputs; or make it an nn.Sequential.",
        )
    parameter = next(model.parameters(), None)
    if isinstance(example, torch.Tensor) and parameter is not None:
        example = example.to(parameter.device)
    calls, output = _called(model, names, example)
    _check_sequence(calls, example, output)
    _check_nothing_left(model, [call.name for call in calls])
    return [call.name for call in calls]


def example_of(loader: DataLoader[Any] | None) -> Any:
    """Return the inputs of a batch of one sample; None if the loader does not show them."""
    if loader is None or loader.batch_size is None or not hasattr(loader.dataset, "__getitem__"):
        return None
    before = random_states()
    try:
        batch: Any = loader.collate_fn([loader.dataset[0]])
    finally:
        set_random_states(before)
    return batch[0] if isinstance(batch, list | tuple) else batch if isinstance(batch, torch.Tensor) else None


def _called(model: nn.Module, names: Sequence[str], example: Any) -> tuple[list[Call], Any]:
    calls: list[Call] = []
    handles: list[Any] = []
    for name in names:

        def note(_module: nn.Module, given: Any, named: Any, output: Any, name: str = name) -> None:
            calls.append(Call(name, given, named, output))

        handles.append(model.get_submodule(name).register_forward_hook(note, with_kwargs=True))
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            output = model(example)
    finally:
        for handle in handles:
            handle.remove()
        for part, mode in modes.items():
            part.training = mode
    return calls, output


def _check_sequence(calls: Sequence[Call], example: Any, output: Any) -> None:
    before, last = example, "the model's input"
    for call in calls:
        if call.named or len(call.given) != 1 or call.given[0] is not before:
            raise StrategyImpossible(
                f"{call.name} gets something else than what {last} gives: the model's forward does more in "
                "between.",
                "Put that into a module of its own, so that the parts hand on one tensor each.",
            )
        before, last = call.output, call.name
    names = [call.name for call in calls]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise StrategyImpossible(f"{twice} is called twice: a pipeline's parts are called once in a step.")
    if output is not before:
        raise StrategyImpossible(
            f"The model gives something else than what {last} gives: its forward does more at the end.",
            "Put that into a module of its own.",
        )


def _check_nothing_left(model: nn.Module, names: Sequence[str]) -> None:
    left = [
        name for name, _ in model.named_parameters() if not any(name.startswith(f"{one}.") for one in names)
    ]
    if left:
        raise StrategyImpossible(
            f"{', '.join(left[:5])} would be in no stage: no part that the model calls holds it.",
            "Put it into a module that the model's forward calls.",
        )


# Stages.


def split(model: nn.Module, names: Sequence[str], stages: int, plan: Any) -> list[list[str]]:
    """Divide a sequence of parts into stages. Raises StrategyImpossible.

    plan: names at which further stages begin; None: so that the largest stage is as small as it can be.
    """
    if len(names) < stages:
        raise StrategyImpossible(
            f"The model has {len(names)} parts, which are too few for {stages} stages.",
            "Use fewer ranks, or group_size= for fewer stages.",
        )
    sizes = [size_of(model.get_submodule(name)) + 1 for name in names]
    begins = _even(sizes, stages) if plan is None else _given(model, names, stages, plan)
    ends = [*begins[1:], len(names)]
    found = [list(names[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    for shared in shared_parameters(model).values():
        holders = {_stage_with(name, found) for name in shared}
        if len(holders) > 1:
            raise StrategyImpossible(
                f"{' and '.join(shared)} are one parameter, but in different stages.",
                "Use two parameters, or a plan= that keeps them in one stage.",
            )
    return found


def _stage_with(parameter: str, stages: Sequence[Sequence[str]]) -> int:
    return next(
        (n for n, names in enumerate(stages) if any(parameter.startswith(f"{name}.") for name in names)), -1
    )


def _given(model: nn.Module, names: Sequence[str], stages: int, plan: Any) -> list[int]:
    if isinstance(plan, str | Mapping) or not isinstance(plan, Sequence):
        raise StrategyImpossible(
            f"A pipeline's plan is a list of names at which stages begin, not {type(plan).__name__}."
        )
    begins = [0]
    for point in plan:
        if point not in names:
            matching(model, str(point))
            raise StrategyImpossible(
                f"No stage can begin at {point!r}.", f"The parts, in order: {', '.join(names)}."
            )
        begins.append(names.index(point))
    if len(begins) != stages or begins != sorted(set(begins)):
        raise StrategyImpossible(
            f"{stages} stages need {stages - 1} names at which the next one begins, in order; the plan has "
            f"{list(plan)}.",
            f"The parts, in order: {', '.join(names)}.",
        )
    return begins


def _even(sizes: Sequence[int], stages: int) -> list[int]:
    """Return where stages begin, so that the largest is as small as possible; none is empty."""
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if len(_filled(sizes, middle)) <= stages:
            high = middle
        else:
            low = middle + 1
    begins = _filled(sizes, low)
    while len(begins) < stages:
        # Some stages could hold more: split one that has several parts.
        ends = [*begins[1:], len(sizes)]
        where = next(n for n, (begin, end) in enumerate(zip(begins, ends, strict=True)) if end - begin > 1)
        begins.insert(where + 1, ends[where] - 1)
    return begins


def _filled(sizes: Sequence[int], limit: int) -> list[int]:
    begins, held = [0], 0
    for number, size in enumerate(sizes):
        if held + size > limit and number:
            begins.append(number)
            held = 0
        held += size
    return begins
