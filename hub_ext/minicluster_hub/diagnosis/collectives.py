"""Explains a job that is stuck since its ranks are in collectives that do not match; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from minicluster.wire import Collective, RankStack
from minicluster_hub.diagnosis.explanation import ORDER, Explanation, ranks_text

_SAME_TENSORS = ("all_reduce", "broadcast", "reduce")
"""Collectives that take tensors of one shape and type on all ranks."""
_TENSORS = "All ranks must pass tensors of the same shape and type: does one have a smaller last batch?"


def explain_differing(stacks: Sequence[RankStack]) -> Explanation | None:
    """Return which ranks wait in which collective, if one group's ranks do not all wait in the same."""
    for in_group in _waiting(stacks).values():
        calls = {(collective.name, collective.number) for collective in in_group.values()}
        tensors = {collective.tensors for collective in in_group.values()}
        if len(calls) > 1:
            return Explanation(f"the ranks are in different collectives: {_each(in_group)}.", ORDER)
        if len(tensors) > 1 and next(iter(calls))[0] in _SAME_TENSORS:
            return Explanation(f"the ranks pass different tensors: {_each(in_group)}.", _TENSORS)
    return None


def _waiting(stacks: Sequence[RankStack]) -> dict[str, dict[int, Collective]]:
    """Return the collectives that are not over, by group and rank."""
    found: defaultdict[str, dict[int, Collective]] = defaultdict(dict)
    for stack in stacks:
        one = stack.collective
        if one is not None and not one.is_over and not one.is_p2p:
            found[one.group][stack.rank] = one
    return found


def _each(collectives: dict[int, Collective]) -> str:
    by_text: defaultdict[str, list[int]] = defaultdict(list)
    for rank, one in collectives.items():
        with_tensors = f" with {one.tensors}" if one.tensors else ""
        by_text[f"{one.name} number {one.number}{with_tensors}"].append(rank)
    return ", ".join(f"{ranks_text(ranks)} in {text}" for text, ranks in by_text.items())
