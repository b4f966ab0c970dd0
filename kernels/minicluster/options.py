"""The lines `%%distribute ...` and `%distribute ...`: what may stand there, and what it means."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import MiniclusterError

_LATER = {
    "--priority": "priorities come in a later version; jobs run in the order of their arrival",
    "up": "gangs that keep their variables come in a later version; a gang stays warm after a cell by itself",
    "down": "gangs are given back by themselves some time after their last cell",
    "connect": "connecting from outside comes in a later version; open a notebook on the hub",
    "doctor": "the doctor comes in a later version; `%distribute nodes` shows the nodes and their slots",
}
_SIZE_UNITS = {"m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIME_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class OptionWrong(MiniclusterError):
    """A line that cannot be understood; the hint lists what is valid."""


@dataclass(frozen=True)
class CellOptions:
    """What stands behind `%%distribute`.

    nodes: least and most; None: all nodes. push, pull: None means what the cell reads, makes.
    quiet_after_s: see wire.JobSpec.
    image: None means the notebook's own, or else the cluster's.
    """

    nodes: tuple[int, int] | None = None
    slots_per_node: int = 1
    ranks_per_node: int | None = None
    name: str = "cell"
    push: tuple[str, ...] | None = None
    pull: tuple[str, ...] | None = None
    detach: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    image: str | None = None
    shm_bytes: int | None = None
    quiet_after_s: float | None = None
    plain: bool = False
    fault_tolerant: bool = False


@dataclass(frozen=True)
class Command:
    """What stands behind `%distribute`."""

    verb: str
    job_id: int | None = None
    rank: int = 0


def parse_cell_line(line: str) -> CellOptions:
    """Parse the line of a cell. Raises OptionWrong."""
    options = CellOptions()
    words = _split(line)
    while words:
        name, value = _take(words, _CELL_OPTIONS)
        option = _CELL_OPTIONS[name]
        try:
            options = option.apply(options, value)
        except ValueError as error:
            said = f"{name} {value}" if option.value else name
            raise OptionWrong(f"{said}: {error}", f"Like this: {name} {option.value}") from None
    return options


def parse_command_line(line: str) -> Command:
    """Parse the line of a command. Raises OptionWrong."""
    words = _split(line)
    verb = words.pop(0) if words else "status"
    if verb not in _COMMANDS:
        raise _unknown(verb, list(_COMMANDS), "%distribute " + " | ".join(_COMMANDS.values()))
    usage = f"Like this: %distribute {_COMMANDS[verb]}"
    command = Command(verb)
    if "ID" in _COMMANDS[verb]:
        if not words or not words[0].isdecimal():
            found = f"not {words[0]!r}" if words else "and none is there"
            raise OptionWrong(f"%distribute {verb} needs the number of a job, {found}.", usage)
        command = replace(command, job_id=int(words.pop(0)))
    if words[:1] == ["--rank"] and verb == "logs":
        if len(words) < 2 or not words[1].isdecimal():
            raise OptionWrong("--rank needs the number of a rank.", usage)
        command = replace(command, rank=int(words[1]))
        words = words[2:]
    if words:
        raise OptionWrong(f"%distribute {verb}: {words[0]!r} is too much.", usage)
    return command


@dataclass(frozen=True)
class _Option:
    value: str
    apply: Callable[[CellOptions, str], CellOptions]


def _split(line: str) -> list[str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise OptionWrong(f"The line cannot be read ({error}): {line}", "Close each quote.") from None
    return [
        part for word in words for part in (word.split("=", 1) if re.match(r"--[\w-]+=", word) else [word])
    ]


def _take(words: list[str], options: Mapping[str, _Option]) -> tuple[str, str]:
    """Take an option and its value off the front of the words."""
    name = words.pop(0)
    if name not in options:
        valid = "  ".join(f"{key} {option.value}".strip() for key, option in options.items())
        raise _unknown(name, list(options), f"Valid: {valid}")
    if not options[name].value:
        return name, ""
    if not words or words[0].startswith("--"):
        raise OptionWrong(f"{name} needs a value.", f"Like this: {name} {options[name].value}")
    return name, words.pop(0)


def _unknown(word: str, known: list[str], valid: str) -> OptionWrong:
    if word in _LATER:
        return OptionWrong(f"{word} is not there yet: {_LATER[word]}.", valid)
    near = difflib.get_close_matches(word, known, 1, 0.5)
    question = f" Did you mean {near[0]}?" if near else ""
    kind = "option" if word.startswith("-") else "word"
    return OptionWrong(f"Unknown {kind} {word!r}.{question}", valid)


def _set(field_name: str, convert: Callable[[str], Any]) -> Callable[[CellOptions, str], CellOptions]:
    return lambda options, value: replace(options, **{field_name: convert(value)})


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("a number from 1 on is needed")
    return int(text)


def _nodes(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    both = _count(least), _count(most or least)
    if both[0] > both[1]:
        raise ValueError("the least is above the most")
    return both


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    wrong = [name for name in names if not name.isidentifier()]
    if wrong or not names:
        raise ValueError(f"{wrong[0] if wrong else text!r} is not a variable's name")
    return names


def _name(text: str) -> str:
    if not 0 < len(text) <= 100:
        raise ValueError("1 to 100 characters are allowed")
    return text


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text)
    if not match or match[2] not in _TIME_UNITS or float(match[1]) <= 0:
        raise ValueError("a time is needed: 90s, 30m, 2h")
    return float(match[1]) * _TIME_UNITS[match[2]]


def _seconds_or_never(text: str) -> float:
    return 0.0 if text == "0" else _seconds(text)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mgt])(?:i?b)?", text.lower())
    size = int(float(match[1]) * _SIZE_UNITS[match[2]]) if match else 0
    if not 1 << 20 <= size <= 1 << 44:
        raise ValueError("a size from 1m on is needed: 512m, 2g")
    return size


def _image(text: str) -> str:
    if not 0 < len(text) <= 512 or not text.isprintable() or " " in text:
        raise ValueError("the name of an image is needed")
    return text


def _add_env(options: CellOptions, text: str) -> CellOptions:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("a name, =, and a value are needed")
    return replace(options, env={**options.env, name: value})


def _comm(options: CellOptions, text: str) -> CellOptions:
    if text in ("auto", "ddp"):
        return options
    if text in ("bf16", "powersgd", "localsgd", "diloco"):
        raise ValueError("compressed communication comes in a later version; auto and ddp are there")
    raise ValueError("auto and ddp are there")


_CELL_OPTIONS = {
    "--nodes": _Option("3 (or 1:3)", _set("nodes", _nodes)),
    "--gpus-per-node": _Option("1", _set("slots_per_node", _count)),
    "--ranks-per-node": _Option("2", _set("ranks_per_node", _count)),
    "--name": _Option("my-run", _set("name", _name)),
    "--push": _Option("a,b", _set("push", lambda text: () if text == "none" else _names(text))),
    "--pull": _Option("a,b (or none)", _set("pull", lambda text: () if text == "none" else _names(text))),
    "--detach": _Option("", lambda options, _: replace(options, detach=True)),
    "--env": _Option("NAME=VALUE", _add_env),
    "--timeout": _Option("30m", _set("timeout_s", _seconds)),
    "--quiet": _Option("5m (or 0: never)", _set("quiet_after_s", _seconds_or_never)),
    "--image": _Option("NAME:TAG", _set("image", _image)),
    "--shm": _Option("2g", _set("shm_bytes", _bytes)),
    "--comm": _Option("auto", _comm),
    "--fault-tolerant": _Option("", lambda options, _: replace(options, fault_tolerant=True)),
    "--plain": _Option("", lambda options, _: replace(options, plain=True)),
}
_COMMANDS = {
    "status": "status",
    "logs": "logs ID [--rank N]",
    "snapshots": "snapshots ID",
    "attach": "attach ID",
    "why": "why ID",
    "stop": "stop ID",
    "result": "result ID",
    "nodes": "nodes",
}
