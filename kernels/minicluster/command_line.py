"""The lines `%distribute ...`: one table of all commands, and what a line of it says.

A row's left side is what people type and what they are shown; the line is read by it:
ID is a job's number, N a number, other capitals are free words, [] may be left out.
The right side says where the command is done: that module is imported when it is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .options import OptionWrong, is_cell_option, split_line, unknown_word

COMMANDS = {
    "status": "commands:status",
    "logs ID [--rank N]": "commands:logs",
    "snapshots ID": "commands:snapshots",
    "files ID [PATH] [--to FOLDER]": "downloads:files",
    "attach ID": "commands:attach",
    "why ID": "commands:why",
    "stop ID": "commands:stop",
    "result ID": "commands:result",
    "queue": "commands:queue",
    "nodes": "commands:nodes",
    "gpus": "commands:gpus",
    "images": "publishing.commands:images",
    "publish NAME [--description TEXT]": "publishing.commands:publish",
    "data": "datasets.commands:show",
    "data push DIR [--name NAME] [--shared]": "datasets.commands:push",
    "data rm NAME": "datasets.commands:remove",
    "connect [URL] [--ca FILE] [--trust FINGERPRINT]": "connect:connect",
    "disconnect": "connect:disconnect",
}


@dataclass(frozen=True)
class Command:
    """What stands behind `%distribute`.

    job: the number where the usage has ID, else 0. options: by name with its dashes; a flag's value is "".
    """

    verb: str
    job: int = 0
    words: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


def parse_command_line(line: str) -> Command:
    """Parse the line of a command. Raises OptionWrong."""
    words = split_line(line) or ["status"]
    usages = {_verb(usage): usage for usage in COMMANDS}
    verb = next((start for start in (" ".join(words[:2]), words[0]) if start in usages), None)
    if verb is None or (verb == "data" and words[1:]):
        if is_cell_option(words[0]):
            told = f"{words[0]} belongs to a cell, whose first line has two %."
            raise OptionWrong(told, f"Like this: %%distribute {line.strip()}")
        two = any(known.startswith(f"{words[0]} ") for known in usages)
        those = [usage for usage in COMMANDS if usage.startswith("data")] if words[0] == "data" else COMMANDS
        valid = "%distribute " + " | ".join(those)
        raise unknown_word(" ".join(words[: 1 + two]), list(usages), valid)
    return _read(verb, words[len(verb.split()) :], usages[verb])


def runs(verb: str) -> str:
    """Return where a command is done: module and function."""
    return next(place for usage, place in COMMANDS.items() if _verb(usage) == verb)


def _verb(usage: str) -> str:
    """Return the words that come first and are typed as they stand there."""
    return re.split(r" (?=[^a-z])", usage)[0]


def _read(verb: str, words: list[str], usage: str) -> Command:
    like = f"Like this: %distribute {usage}"
    needed = re.sub(r"\[.*?\]", "", usage[len(verb) :]).split()
    free = [*needed, *re.findall(r"\[([A-Z]+)\]", usage)]
    options = _options(words, dict(re.findall(r"\[(--[\w-]+) ?([^\]]*)\]", usage)), like)
    job = 0
    if free[:1] == ["ID"]:
        if not words or not words[0].isdecimal():
            found = f"not {words[0]!r}" if words else "and none is there"
            raise OptionWrong(f"%distribute {verb} needs the number of a job, {found}.", like)
        job, needed, free = int(words.pop(0)), needed[1:], free[1:]
    if len(words) < len(needed):
        raise OptionWrong(f"%distribute {verb} needs {needed[len(words)]}.", like)
    if len(words) > len(free):
        raise OptionWrong(f"%distribute {verb}: {words[len(free)]!r} is too much.", like)
    return Command(verb, job, tuple(words), options)


def _options(words: list[str], known: Mapping[str, str], like: str) -> dict[str, str]:
    """Take the options and their values out of the words."""
    found: dict[str, str] = {}
    for name in [word for word in words if word.startswith("--")]:
        if name not in known:
            raise unknown_word(name, list(known), like)
        at = words.index(name)
        value = words[at + 1] if known[name] and len(words) > at + 1 else ""
        if known[name] == "N" and not value.isdecimal():
            raise OptionWrong(f"{name} needs a number.", like)
        if known[name] and (not value or value.startswith("--")):
            raise OptionWrong(f"{name} needs a value.", like)
        del words[at : at + (2 if known[name] else 1)]
        found[name] = value
    return found
