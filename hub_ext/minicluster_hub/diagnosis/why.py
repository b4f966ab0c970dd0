"""Explains in one sentence why a job is stuck, from its ranks' stacks: which ranks wait for which; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from minicluster.wire import RankStack, StackStatus
from minicluster_hub.diagnosis.collectives import explain_differing
from minicluster_hub.diagnosis.explanation import ORDER, Explanation, ranks_text
from minicluster_hub.diagnosis.rank_location import LocationKind, RankLocation, location_of

BUSY_S = 5.0
"""A rank with output, a record or CPU time in these last seconds is at work."""

_WITHOUT_STACK = {
    StackStatus.STOPPED: "{who} {is_} stopped by a signal (SIGSTOP, or a debugger)",
    StackStatus.KERNEL: "{who} {is_} held inside the kernel (a disk, a file server or a driver is stuck)",
    StackStatus.SILENT: "{who} {does} not answer, though {it} {is_} running",
    StackStatus.STARTING: "{who} {is_} still starting",
    StackStatus.UNREACHABLE: "the node of {who} does not answer",
}
_NEXT = {
    StackStatus.STOPPED: "Wake it with SIGCONT, or stop the job.",
    StackStatus.KERNEL: "Check that node's disks, mounts and GPU driver.",
    StackStatus.UNREACHABLE: "Check that node: %distribute nodes.",
}
_NETWORK = (
    "Do all ranks pass tensors of the same size? If so, check the network between the nodes: "
    "the admin's `doctor` measures it."
)
_LOOP = "Check why it takes another path than the others: data of another length, or an `if` on the rank."


def explain(stacks: Sequence[RankStack], *, over: bool = False) -> Explanation:
    """Return why the ranks are stuck, or that they are not. over: the job has ended, no rank goes on."""
    stacks = sorted(stacks, key=lambda stack: stack.rank)
    seen = [stack for stack in stacks if stack.sight is StackStatus.SEEN]
    places = {stack.rank: location_of(stack) for stack in seen}
    waiting = {rank: place for rank, place in places.items() if place.kind is LocationKind.RANKS}
    hidden = [stack for stack in stacks if stack.sight in _WITHOUT_STACK]
    ended = [stack.rank for stack in stacks if stack.sight is StackStatus.ENDED]
    others = [stack for stack in seen if stack.rank not in waiting]
    if hidden:
        return _hidden(hidden, waiting)
    if not seen:
        return Explanation("the cell is over on all ranks; what is left is being brought home.")
    if all(stack.quiet_s < BUSY_S for stack in seen):
        return Explanation(f"all ranks make progress; {'; '.join(_where(seen, places))}.")
    if waiting and (others or ended):
        return _missing(waiting, others, places, ended, over=over)
    if waiting:
        return _all_wait(waiting, seen)
    return _none_waits(others, places)


def _hidden(hidden: Sequence[RankStack], waiting: dict[int, RankLocation]) -> Explanation:
    parts: list[str] = []
    for sight, group in groupby(sorted(hidden, key=_by_sight), key=_by_sight):
        ranks = [stack.rank for stack in group]
        one = len(ranks) == 1
        words = {
            "is_": "is" if one else "are",
            "does": "does" if one else "do",
            "it": "it" if one else "they",
        }
        parts.append(_WITHOUT_STACK[sight].format(who=ranks_text(ranks), **words))
    if waiting:
        parts.append(_wait(waiting))
    return Explanation("; ".join(parts) + ".", _NEXT.get(hidden[0].sight, ""))


def _by_sight(stack: RankStack) -> StackStatus:
    return stack.sight


def _missing(
    waiting: dict[int, RankLocation],
    others: Sequence[RankStack],
    places: dict[int, RankLocation],
    ended: Sequence[int],
    *,
    over: bool,
) -> Explanation:
    """Explain that some ranks wait for others, which are elsewhere or have ended."""
    goals = _distinct(place for place in waiting.values() if place.line) or _distinct(waiting.values())
    goal = _the(goals[0]) if len(goals) == 1 else "what the others wait in"
    there = _wait(waiting, there=len(_distinct(waiting.values())) == 1)
    parts: list[str] = []
    at_work = [stack.rank for stack in others if stack.quiet_s < BUSY_S and not over]
    stuck = [stack.rank for stack in others if stack.rank not in at_work]
    if ended:
        parts.append(f"the cell is over on {ranks_text(ended)}, which never reached {goal}")
    if stuck:
        parts.append(f"{ranks_text(stuck)} never reached {goal}")
    if at_work:
        parts.append(f"{ranks_text(at_work)} {_has(at_work)} not reached {goal} yet")
    where = " ".join(_sentence(line) for line in _where(others, places))
    return Explanation(f"{' and '.join(parts)}; {there}. {where}".strip(), ORDER if ended else _LOOP)


def _all_wait(waiting: dict[int, RankLocation], seen: Sequence[RankStack]) -> Explanation:
    goals = _distinct(waiting.values())
    if len(goals) > 1:
        return Explanation(f"ranks wait in different places: {_each(waiting)}.", ORDER)
    if (differing := explain_differing(seen)) is not None:
        return differing
    if len(waiting) == 1:
        return Explanation(f"rank {next(iter(waiting))} is in {_the(goals[0])}.")
    who = f"all {len(waiting)} ranks are in {_the(goals[0])}"
    return Explanation(f"{who}, and it does not end: no data comes through.", _NETWORK)


def _none_waits(others: Sequence[RankStack], places: dict[int, RankLocation]) -> Explanation:
    stalled = [stack for stack in others if stack.quiet_s >= BUSY_S]
    if not stalled:
        return Explanation(f"no rank waits for another; {'; '.join(_where(others, places))}.")
    who = f"{ranks_text([stack.rank for stack in stalled])} {_does(stalled)} nothing"
    return Explanation(f"{who}, and no rank waits for another; {'; '.join(_where(others, places))}.")


def _where(stacks: Sequence[RankStack], places: dict[int, RankLocation]) -> list[str]:
    """Return where ranks are that do not wait for others, one part for each location."""
    by_place: dict[str, list[int]] = {}
    for stack in stacks:
        by_place.setdefault(places[stack.rank].words(stack.quiet_s >= BUSY_S), []).append(stack.rank)
    return [f"{ranks_text(ranks)} {_is(ranks)} {words}" for words, ranks in by_place.items()]


def _wait(waiting: dict[int, RankLocation], *, there: bool = False) -> str:
    if there:
        return f"{ranks_text(waiting)} {_waits(waiting)} there"
    goals = _distinct(waiting.values())
    if len(goals) == 1:
        return f"{ranks_text(waiting)} {_waits(waiting)} in {_the(goals[0])}"
    return f"others wait: {_each(waiting)}"


def _each(waiting: dict[int, RankLocation]) -> str:
    by_goal: dict[RankLocation, list[int]] = {}
    for rank, place in waiting.items():
        by_goal.setdefault(place, []).append(rank)
    return ", ".join(f"{ranks_text(ranks)} in {_the(goal)}" for goal, ranks in by_goal.items())


def _distinct(places: Iterable[RankLocation]) -> list[RankLocation]:
    return list(dict.fromkeys(places))


def _the(place: RankLocation) -> str:
    return f"the {place.what} of {place.line}" if place.line else f"the {place.what}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _is(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _has(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _does(ranks: Sequence[object]) -> str:
    return "does" if len(ranks) == 1 else "do"


def _waits(ranks: dict[int, RankLocation]) -> str:
    return "waits" if len(ranks) == 1 else "wait"
