"""The lines of the magics, read by argparse: mistakes in our words, help with one line for each argument."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from argparse import ArgumentError, HelpFormatter, Namespace
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from minicluster.errors import MiniclusterError

_HELP = ("--help", "-h")


class OptionWrong(MiniclusterError):
    """A line that cannot be understood; the hint lists what is valid."""


class HelpAsked(Exception):
    """The line has --help in it; its text is what to show."""


@dataclass(frozen=True)
class Argument:
    """One thing that a line may say.

    name: `--nodes`, or `ID` where its place tells what it is.
    read: makes a value of what was typed, or raises ValueError with what is needed; None: a flag.
    like: an example of what is typed. dest: the attribute that has the value.
    add: joins a repeated option's value to the one before.
    offers: what Tab offers, see completion.py: a kind of names, or the words themselves.
    needed, rest: of a word without dashes. rest: all that follows, however it looks, as a list.
    """

    name: str
    help: str
    read: Callable[[str], Any] | None = None
    like: str = ""
    dest: str = ""
    default: Any = None
    add: Callable[[Any, Any], Any] | None = None
    offers: str | tuple[str, ...] = ""
    needed: bool = True
    rest: bool = False

    @property
    def is_option(self) -> bool:
        return self.name.startswith("--")

    @property
    def shown(self) -> str:
        """As it stands in a usage."""
        text = f"{self.name} {self.like}".strip() if self.is_option else self.name
        return f"[{text}]" if self.is_option or not self.needed else text


class LineParser:
    """Reads the words of one magic, or of one of its commands.

    prog: as it is typed. hint: what is said when a word is unknown; empty: the usage.
    """

    def __init__(self, prog: str, about: str, arguments: Iterable[Argument], hint: str = "") -> None:
        self.arguments = {one.name: one for one in arguments}
        self.prog = prog
        self.usage = " ".join([prog, *(one.shown for one in self._in_order())])
        self._hint = hint or f"Like this: {self.usage}"
        self._parser = _Parser(
            prog=prog,
            usage=f"%(prog)s{self.usage[len(prog) :]}" if len(self.usage) < 100 else "%(prog)s [OPTIONS]",
            description=about,
            formatter_class=lambda prog: HelpFormatter(prog, max_help_position=34, width=130),
            add_help=False,
            allow_abbrev=False,
            exit_on_error=False,
        )
        for one in self.arguments.values():
            self._declare(one)
        self._parser.add_argument(
            *_HELP, action=_ShowHelp, nargs=0, default=argparse.SUPPRESS, help="show this text"
        )

    def parse(self, words: list[str]) -> Namespace:
        """Return what the words say. Raises OptionWrong and HelpAsked."""
        # Options may stand between words, but not where the rest of the line belongs to something else.
        rest = any(one.rest for one in self.arguments.values())
        read = self._parser.parse_known_args if rest else self._parser.parse_known_intermixed_args
        try:
            found, left = read(words)
        except ArgumentError as error:
            raise self._wrong(error, words) from None
        if left:
            raise self._unknown(left) or self._unknown_word(left[0])
        return found

    def help(self) -> str:
        return self._parser.format_help()

    def _in_order(self) -> list[Argument]:
        # What takes the rest of the line stands behind all options.
        return sorted(self.arguments.values(), key=lambda one: one.rest)

    def _declare(self, one: Argument) -> None:
        more: dict[str, Any] = {"help": one.help.replace("%", "%%")}
        if one.rest:
            more |= {"nargs": argparse.REMAINDER}
        elif one.read is None:
            more |= {"action": "store_true"}
        else:
            more |= {"type": self._reader(one, one.read), "default": one.default}
            more |= {"action": _Add, "add": one.add} if one.add else {}
            more |= {} if one.is_option or one.needed else {"nargs": "?"}
        if one.is_option:
            more |= {"dest": one.dest} | ({"metavar": one.like} if one.read else {})
            self._parser.add_argument(one.name, **more)
        else:
            self._parser.add_argument(one.dest, metavar=one.name, **more)

    def _reader(self, one: Argument, read: Callable[[str], Any]) -> Callable[[str], Any]:
        def reader(text: str) -> Any:
            try:
                return read(text)
            except ValueError as error:
                raise self._bad(one, text, error) from None

        return reader

    def _bad(self, one: Argument, text: str, error: ValueError) -> OptionWrong:
        if one.is_option:
            return OptionWrong(f"{one.name} {text}: {error}.", f"Like this: {one.name} {one.like}")
        return OptionWrong(f"{self.prog} {text}: {error}.", f"Like this: {self.usage}")

    def _wrong(self, error: ArgumentError, words: list[str]) -> OptionWrong:
        """Say in our words what argparse found."""
        if error.argument_name is None:
            missing = self.arguments[error.message.rpartition(": ")[2].split(", ")[0]]
            needs = f"{self.prog} needs {missing.name}: {missing.help}."
            return self._unknown(words) or OptionWrong(needs, f"Like this: {self.usage}")
        one = self.arguments.get(error.argument_name)
        if one is None or one.read is None:
            return OptionWrong(f"{error.argument_name} takes no value.", f"Like this: {error.argument_name}")
        return OptionWrong(f"{one.name} needs a value.", f"Like this: {one.name} {one.like}")

    def _unknown(self, words: list[str]) -> OptionWrong | None:
        names = (word.partition("=")[0] for word in words if word.startswith("-"))
        unknown = next((name for name in names if name not in self.arguments and name not in _HELP), None)
        return None if unknown is None else self._unknown_word(unknown)

    def _unknown_word(self, word: str) -> OptionWrong:
        return unknown_word(word, [name for name in self.arguments if name.startswith("--")], self._hint)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ArgumentError(None, message)


class _ShowHelp(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        raise HelpAsked(parser.format_help())


class _Add(argparse.Action):
    """Joins the values of an option that may be repeated."""

    def __init__(self, *args: Any, add: Callable[[Any, Any], Any], **more: Any) -> None:
        super().__init__(*args, **more)
        self._add = add

    def __call__(self, parser: Any, namespace: Namespace, values: Any, option: str | None = None) -> None:
        try:
            setattr(namespace, self.dest, self._add(getattr(namespace, self.dest), values))
        except ValueError as error:
            raise OptionWrong(f"{option}: {error}.", f"Like this: {option} {self.metavar}") from None


def unknown_word(word: str, known: Iterable[str], hint: str) -> OptionWrong:
    """Return the error that tells an unknown word, with those that look like it."""
    near = difflib.get_close_matches(word, list(known), 3, 0.6)
    question = f" Did you mean {' or '.join(near)}?" if near else ""
    kind = "option" if word.startswith("-") else "word"
    return OptionWrong(f"Unknown {kind} {word!r}.{question}", hint)


def split_line(line: str) -> list[str]:
    """Return the words of a line, without quotes and comment. Raises OptionWrong."""
    try:
        return shlex.split(_without_comment(line))
    except ValueError as error:
        raise OptionWrong(f"The line cannot be read ({error}): {line}", "Close each quote.") from None


def _without_comment(line: str) -> str:
    """Drop what follows a # that begins a word; shlex would take any # for the begin of a comment."""
    for found in re.finditer(r"(?<!\S)#", line):
        with suppress(ValueError):  # It is within quotes.
            shlex.split(line[: found.start()])
            return line[: found.start()]
    return line
