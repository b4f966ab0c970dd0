"""The lines of the magics, read by argparse: a mistake raises an error with an example of what is right."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from argparse import REMAINDER, SUPPRESS, Action, ArgumentError, HelpFormatter, Namespace
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from minicluster.errors import MiniclusterError

if TYPE_CHECKING:
    from minicluster.client.client import JobServiceClient

HELP = ("--help", "-h")

_ELSEWHERE = {"--strategy": "The cell says it: mc.prepare(model, optimizer, strategy='fsdp')."}
"""What is no option, but is looked for among them: by the word, where it belongs."""


class OptionWrong(MiniclusterError):
    """A line that cannot be understood; the hint lists what is valid."""


class HelpRequested(Exception):
    """The line contains --help; the message is the text to show."""


class Argument(NamedTuple):
    """One argument of a line. name: `--nodes`, or the attribute's name of a positional argument.

    completer: fetches the values that Tab offers from the cluster. more: further arguments of `add_argument`.
    """

    name: str
    help: str
    completer: Callable[[JobServiceClient], Iterable[str]] | None = None
    more: Mapping[str, Any] = {}


class Join(Action):
    """Joins the values of an option that is repeated, each once."""

    def __call__(self, parser: Any, namespace: Namespace, values: Any, option: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        joined = before | values if isinstance(values, dict) else tuple(dict.fromkeys(before + values))
        setattr(namespace, self.dest, joined)


class LineParser(argparse.ArgumentParser):
    """Reads the words of one magic, or of one of its commands.

    hint: the hint of an error about an unknown word; empty: the usage. shown: replaces the arguments in the
    usage, if all of them would be too long.
    """

    def __init__(
        self, prog: str, about: str, arguments: Iterable[Argument], hint: str = "", shown: str = ""
    ) -> None:
        super().__init__(
            prog,
            description=about,
            formatter_class=lambda prog: HelpFormatter(prog, max_help_position=34, width=130),
            add_help=False,
            allow_abbrev=False,
            exit_on_error=False,
        )
        self.completers: dict[Action, Callable[[JobServiceClient], Iterable[str]]] = {}
        for one in arguments:
            action = self.add_argument(one.name, help=one.help.replace("%", "%%"), **one.more)
            if one.completer is not None:
                self.completers[action] = one.completer
        # The argument that takes the rest of the line comes after all options.
        usages = map(_usage, sorted(self.actions, key=lambda action: action.nargs == REMAINDER))
        self.line = f"{prog} {shown or ' '.join(usages)}".strip()
        self.usage = self.line.replace("%", "%%") if len(self.line) < 100 else "%(prog)s [OPTIONS]"
        self.hint = hint or f"Like this: {self.line}"
        self.add_argument(*HELP, action="help", default=SUPPRESS, help="show this text")

    @property
    def actions(self) -> list[Action]:
        """The arguments that are shown, in the order of their declaration, without --help."""
        return [one for one in self._actions if SUPPRESS not in (one.default, one.help)]

    @property
    def options(self) -> dict[str, Action]:
        return {name: action for action in self.actions for name in action.option_strings}

    def parse_words(self, words: list[str]) -> Namespace:
        """Return the values of the arguments. Raises OptionWrong and HelpRequested."""
        # Options may come between words, unless an argument takes the rest of the line.
        rest = any(action.nargs == REMAINDER for action in self.actions)
        read = self.parse_known_args if rest else self.parse_known_intermixed_args
        try:
            values, unknown = read(words)
        except ArgumentError as error:
            raise self._wrong(error, words) from None
        if unknown:
            raise self._unknown(unknown) or unknown_word(unknown[0], self.options, self.hint)
        return values

    def error(self, message: str) -> Any:
        raise ArgumentError(None, message)

    def print_help(self, file: object = None) -> None:
        raise HelpRequested(self.format_help())

    def _wrong(self, error: ArgumentError, words: list[str]) -> OptionWrong:
        name = error.argument_name
        if name is None:
            missing = OptionWrong(f"{self.prog}: {error.message}.", f"Like this: {self.line}")
            return self._unknown(words) or missing
        option = self._option_string_actions.get(name)
        like = f"{name} {option.metavar or ''}".strip() if option else self.line
        return OptionWrong(f"{name}: {error.message}.", f"Like this: {like}")

    def _unknown(self, words: list[str]) -> OptionWrong | None:
        names = (word.partition("=")[0] for word in words if word.startswith("-"))
        known = {*self._option_string_actions}
        unknown = next((name for name in names if name not in known), None)
        return None if unknown is None else unknown_word(unknown, self.options, self.hint)


def _usage(action: Action) -> str:
    name = action.option_strings[0] if action.option_strings else ""
    text = f"{name} {action.metavar or ''}".strip() + (" ..." if action.nargs == "+" else "")
    return text if action.required else f"[{text}]"


def unknown_word(word: str, known: Iterable[str], hint: str) -> OptionWrong:
    """Return the error about an unknown word, with similar valid words."""
    near = difflib.get_close_matches(word, list(known), 3, 0.6)
    question = f"Did you mean {' or '.join(near)}?" if near else ""
    kind = "option" if word.startswith("-") else "word"
    return OptionWrong(f"Unknown {kind} {word!r}. {_ELSEWHERE.get(word, question)}".rstrip(), hint)


def split_line(line: str) -> list[str]:
    """Return the words of a line, without quotes and comment. Raises OptionWrong."""
    try:
        return shlex.split(_without_comment(line))
    except ValueError as error:
        raise OptionWrong(f"The line cannot be read ({error}): {line}", "Close each quote.") from None


def _without_comment(line: str) -> str:
    """Drop what follows a # that begins a word; shlex would take any # for a comment."""
    for found in re.finditer(r"(?<!\S)#", line):
        with suppress(ValueError):  # It is within quotes.
            shlex.split(line[: found.start()])
            return line[: found.start()]
    return line
