"""An answer of `why`, and the words that all answers share."""

from __future__ import annotations

from collections.abc import Iterable

ORDER = "All ranks must call the same collectives in the same order, as often as each other."


class Explanation:
    """A sentence, and what to do about it."""

    def __init__(self, sentence: str, hint: str = "") -> None:
        self.sentence = sentence[:1].upper() + sentence[1:]
        self.hint = hint


def ranks_text(ranks: Iterable[int]) -> str:
    """Return "rank 2", "ranks 0 and 1" or "ranks 0, 2 and 4-7"."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else " and ".join(map(str, run)) for run in runs]
    if len(parts) == 1:
        return f"ranks {parts[0]}"
    words = [part for run in parts for part in run.split(" and ")]
    return f"ranks {', '.join(words[:-1])} and {words[-1]}"
