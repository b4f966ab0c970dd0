"""What Tab offers on the lines of the magics: options, commands, and names that the cluster has."""

from __future__ import annotations

import threading
import time
from argparse import Action
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from IPython.core.completer import SimpleCompletion, SimpleMatcherResult

from minicluster.commands import COMMANDS, command_of
from minicluster.options import cell_parser
from minicluster.parsing import values
from minicluster.parsing.parser import LineParser

if TYPE_CHECKING:
    from minicluster.client.client import JobServiceClient
    from minicluster.magics import Distribute

_WAIT_S = 1.0
_FRESH_S = 10.0


class Completer:
    """Completes a magic's line. A late answer of the cluster is offered at the next Tab."""

    def __init__(self, magics: Distribute) -> None:
        self._magics = magics
        self._answers: dict[Callable[[JobServiceClient], Iterable[str]], tuple[float, tuple[str, ...]]] = {}

    def complete(self, magic: str, typed: str) -> SimpleMatcherResult:
        """Return the completions of the last word typed after a magic."""
        words = typed.split()
        word = words.pop() if words and not typed[-1:].isspace() else ""
        of_magic = {"%distribute": self._of_commands, "%serve": self._of_serve}.get(magic)
        found = of_magic(words, word) if of_magic else self._of_cell(magic, words, word)
        fitting = [SimpleCompletion(one) for one in found if one.startswith(word)]
        # Python's own completions do not belong on these lines. File names may, if nothing else fits.
        return {"completions": fitting, "matched_fragment": word, "suppress": bool(fitting), "ordered": True}

    def _of_cell(self, magic: str, words: list[str], word: str) -> Iterable[str]:
        if magic == "%%sweep":
            from minicluster.sweeps.options import sweep_parser

            return self._words(sweep_parser(), words, word)
        return self._words(cell_parser(), words, word)

    def _of_serve(self, words: list[str], word: str) -> Iterable[str]:
        from minicluster.serving.commands import VERBS
        from minicluster.serving.options import serve_parser

        if not words:
            return [*VERBS, *self._magics.names(), "--help"]
        if words[-1] == "--example":
            return self._magics.names()
        verb = VERBS.get(words[0])
        return self._words(verb.parser if verb else serve_parser(), words[1:], word)

    def _of_commands(self, words: list[str], word: str) -> Iterable[str]:
        typed = " ".join([*words, ""])
        next_words = [verb[len(typed) :].split()[0] for verb in COMMANDS if verb.startswith(typed)]
        command = command_of(words) if words else None
        if command is None:
            return [*dict.fromkeys(next_words), "--help"]
        behind = words[len(command.verb.split()) :]
        return [*([] if behind else next_words), *self._words(command.parser, behind, word)]

    def _words(self, parser: LineParser, words: list[str], word: str) -> Iterable[str]:
        """Return what may follow these words, according to one parser."""
        name, equals, value = word.partition("=")
        option = parser.options.get(name if equals else words[-1] if words else "")
        if option and option.metavar:
            found = self._values(parser, option, value if equals else word)
            return [f"{name}={one}" if equals else one for one in found]
        places = [one for one in parser.actions if not one.option_strings and not words]
        offered = self._values(parser, places[0], word) if places and not word.startswith("-") else ()
        return [*offered, *parser.options, "--help"]

    def _values(self, parser: LineParser, action: Action, word: str) -> Iterable[str]:
        """Return values of an argument. In a list, complete what comes after the last comma."""
        if action.choices is not None:
            return action.choices
        if action.type is values.variables:
            names = self._magics.names()
        else:
            names = self._ask(parser.completers[action]) if action in parser.completers else ()
        listed = f"{head}," if (head := word.rpartition(",")[0]) else ""
        return [f"{listed}{one}" for one in names]

    def _ask(self, completer: Callable[[JobServiceClient], Iterable[str]]) -> tuple[str, ...]:
        def ask() -> None:
            try:
                self._answers[completer] = time.monotonic(), tuple(completer(self._magics.service()))
            except Exception:
                # Tab never shows an error; without a cluster there are no names.
                return

        asked_at, names = self._answers.get(completer, (0.0, ()))
        if time.monotonic() - asked_at > _FRESH_S:
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            asking.join(_WAIT_S)
            names = self._answers.get(completer, (0.0, names))[1]
        return names
