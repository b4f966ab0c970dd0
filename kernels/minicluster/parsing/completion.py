"""What Tab offers on the lines of the magics: options, commands, and names that the cluster knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from IPython.core.completer import SimpleCompletion, SimpleMatcherResult

from minicluster.commands.table import COMMANDS, command_of
from minicluster.datasets import calls
from minicluster.options import cell_parser
from minicluster.parsing.parser import Argument, LineParser

if TYPE_CHECKING:
    from minicluster.magics import Distribute

_WAIT_S = 1.0
_FRESH_S = 10.0


class Completer:
    """Completes a magic's line. What the cluster does not tell in a moment is offered at the next Tab."""

    def __init__(self, magics: Distribute) -> None:
        self._magics = magics
        self._known: dict[str, tuple[float, tuple[str, ...]]] = {}

    def complete(self, magic: str, typed: str) -> SimpleMatcherResult:
        """Return what may stand behind a magic in place of the word at the end of what was typed."""
        words = typed.split()
        word = words.pop() if words and not typed[-1:].isspace() else ""
        found = self._words(cell_parser(), words, word) if magic == "%%" else self._of_commands(words, word)
        fitting = [SimpleCompletion(one) for one in found if one.startswith(word)]
        # What Python has of this name belongs to no line of ours; files may, where nothing else does.
        return {"completions": fitting, "matched_fragment": word, "suppress": bool(fitting), "ordered": True}

    def _of_commands(self, words: list[str], word: str) -> Iterable[str]:
        typed = " ".join([*words, ""])
        next_words = [verb[len(typed) :].split()[0] for verb in COMMANDS if verb.startswith(typed)]
        command = command_of(words) if words else None
        if command is None:
            return [*dict.fromkeys(next_words), "--help"]
        behind = words[len(command.verb.split()) :]
        return [*([] if behind else next_words), *self._words(command.parser, behind, word)]

    def _words(self, parser: LineParser, words: list[str], word: str) -> Iterable[str]:
        """Return the words that may follow these of one parser."""
        name, equals, _ = word.partition("=")
        before = parser.arguments.get(name if equals else words[-1] if words else "")
        if before and before.is_option and before.read:
            return [
                f"{name}={one}" if equals else one for one in self._values(before, "" if equals else word)
            ]
        if word.startswith("-"):
            return [*parser.arguments, "--help"]
        places = [one for one in parser.arguments.values() if not one.is_option]
        offered = [value for one in places[:1] if not words for value in self._values(one, word)]
        return [*offered, *(one for one in (*parser.arguments, "--help") if one.startswith("--"))]

    def _values(self, argument: Argument, word: str) -> Iterable[str]:
        """Return values of an argument; of a list, what may follow its last comma."""
        if isinstance(argument.offers, tuple):
            return argument.offers
        listed = f"{head}," if (head := word.rpartition(",")[0]) else ""
        return [f"{listed}{one}" for one in self._names(argument.offers)]

    def _names(self, kind: str) -> tuple[str, ...]:
        if kind == "names":
            return tuple(self._magics.names())
        if kind not in _ASK:
            return ()
        asked_at, names = self._known.get(kind, (0.0, ()))
        if time.monotonic() - asked_at > _FRESH_S:
            asking = threading.Thread(target=self._ask, args=(kind,), daemon=True)
            asking.start()
            asking.join(_WAIT_S)
            names = self._known.get(kind, (0.0, names))[1]
        return names

    def _ask(self, kind: str) -> None:
        try:
            self._known[kind] = time.monotonic(), tuple(_ASK[kind](self._magics))
        except Exception:
            # Tab never shows an error; without a cluster there are no names.
            return


_ASK: dict[str, Callable[[Distribute], Iterable[str]]] = {
    "jobs": lambda magics: (str(job.id) for job in magics.service().jobs()),
    "images": lambda magics: (one.name for one in magics.service().images().images),
    "data": lambda magics: _data_sets(magics),
}


def _data_sets(magics: Distribute) -> Iterable[str]:
    service = magics.service()
    return [
        one.name if one.owner == service.user or not service.user else f"{one.owner}/{one.name}"
        for one in calls.listed(service)
    ]
