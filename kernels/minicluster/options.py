"""The lines `%%distribute ...`: what may stand there, and what it means."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .errors import MiniclusterError

_ELSEWHERE = {
    "up": "is not there yet: gangs that keep their variables come in a later version; "
    "a gang stays warm after a cell by itself",
    "down": "is not needed: gangs are given back by themselves some time after their last cell",
    "doctor": "is a command of the administrator's; `%distribute nodes` shows the nodes and their slots",
}
"""Words that people try here."""
_MOST_DATA_SETS = 32
_SIZE_UNITS = {"m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIME_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class OptionWrong(MiniclusterError):
    """A line that cannot be understood; the hint lists what is valid."""


@dataclass(frozen=True)
class CellOptions:
    """What stands behind `%%distribute`.

    nodes: least and most; None: all nodes. slots: the same of slots wherever they are, in their place.
    push, pull: None means what the cell reads, makes.
    files: paths that travel from beside the notebook. data: data sets of the cluster.
    quiet_after_s: see wire.JobSpec.
    priority: from 1 to 99, see wire.JobSpec.
    image: None means the notebook's own, or else the cluster's.
    sync_env: what was installed here with pip is installed for the ranks, too.
    """

    nodes: tuple[int, int] | None = None
    slots_per_node: int = 1
    ranks_per_node: int | None = None
    slots: tuple[int, int] | None = None
    name: str = "cell"
    push: tuple[str, ...] | None = None
    pull: tuple[str, ...] | None = None
    files: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    detach: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    image: str | None = None
    shm_bytes: int | None = None
    quiet_after_s: float | None = None
    plain: bool = False
    fault_tolerant: bool = False
    sync_env: bool = False
    priority: int = 50


def parse_cell_line(line: str) -> CellOptions:
    """Parse the line of a cell. Raises OptionWrong."""
    options = CellOptions()
    words = split_line(line)
    while words:
        name, value = _take(words, _CELL_OPTIONS)
        option = _CELL_OPTIONS[name]
        try:
            options = option.apply(options, value)
        except ValueError as error:
            said = f"{name} {value}" if option.value else name
            raise OptionWrong(f"{said}: {error}", f"Like this: {name} {option.value}") from None
    _check_shape(options)
    return options


def _check_shape(options: CellOptions) -> None:
    whole_nodes = options.nodes or options.ranks_per_node or options.slots_per_node != 1
    if options.slots and (whole_nodes or options.fault_tolerant):
        raise OptionWrong(
            "--gpus takes GPUs wherever they are, one rank for each.",
            "Leave --nodes, --gpus-per-node, --ranks-per-node and --fault-tolerant out, or --gpus.",
        )


def is_cell_option(word: str) -> bool:
    return word in _CELL_OPTIONS


def local_path(text: str) -> Path:
    """Return a path of this machine, as people write it. Raises OptionWrong."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise OptionWrong(f"{text}: there is no such user here.", "~/ is your own home.") from None


def split_line(line: str) -> list[str]:
    """Return the words of a line; `--name=value` is two. Raises OptionWrong."""
    try:
        words = shlex.split(_without_comment(line))
    except ValueError as error:
        raise OptionWrong(f"The line cannot be read ({error}): {line}", "Close each quote.") from None
    return [
        part for word in words for part in (word.split("=", 1) if re.match(r"--[\w-]+=", word) else [word])
    ]


def _without_comment(line: str) -> str:
    """Drop what follows a # that begins a word; shlex would take any # for the begin of a comment."""
    for found in re.finditer(r"(?<!\S)#", line):
        with suppress(ValueError):  # It is within quotes.
            shlex.split(line[: found.start()])
            return line[: found.start()]
    return line


def unknown_word(word: str, known: list[str], valid: str) -> OptionWrong:
    """Return the error that tells an unknown word, with the nearest one that is known."""
    if word in _ELSEWHERE:
        return OptionWrong(f"{word} {_ELSEWHERE[word]}.", valid)
    near = difflib.get_close_matches(word, known, 1, 0.5)
    question = f" Did you mean {near[0]}?" if near else ""
    kind = "option" if word.startswith("-") else "word"
    return OptionWrong(f"Unknown {kind} {word!r}.{question}", valid)


@dataclass(frozen=True)
class _Option:
    value: str
    apply: Callable[[CellOptions, str], CellOptions]


def _take(words: list[str], options: Mapping[str, _Option]) -> tuple[str, str]:
    """Take an option and its value off the front of the words."""
    name = words.pop(0)
    if name not in options:
        valid = "  ".join(f"{key} {option.value}".strip() for key, option in options.items())
        raise unknown_word(name, list(options), f"Valid: {valid}")
    if not options[name].value:
        return name, ""
    if not words or words[0].startswith("--"):
        raise OptionWrong(f"{name} needs a value.", f"Like this: {name} {options[name].value}")
    return name, words.pop(0)


def _set(field_name: str, convert: Callable[[str], Any]) -> Callable[[CellOptions, str], CellOptions]:
    return lambda options, value: replace(options, **{field_name: convert(value)})


def _count(text: str, most: int = 10_000) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ValueError(f"a number from 1 to {most} is needed")
    return int(text)


def _count_to(most: int) -> Callable[[str], int]:
    return lambda text: _count(text, most)


def _priority(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 99:
        raise ValueError("a number from 1 to 99 is needed; 50 is that of every job")
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


def _paths(options: CellOptions, text: str) -> tuple[str, ...]:
    paths = tuple(part.strip() for part in text.split(",") if part.strip())
    if not paths:
        raise ValueError("files or folders beside the notebook are needed")
    return (*options.files, *paths)


def _data_sets(options: CellOptions, text: str) -> CellOptions:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    wrong = [name for name in names if not re.fullmatch(r"([^/\s]+/)?[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name)]
    if wrong or not names:
        raise ValueError(f"{wrong[0] if wrong else text!r} is no name of a data set")
    data = tuple(dict.fromkeys((*options.data, *names)))
    if len(data) > _MOST_DATA_SETS:
        raise ValueError(f"at most {_MOST_DATA_SETS} data sets can be named")
    return replace(options, data=data)


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
    "--gpus-per-node": _Option("1", _set("slots_per_node", _count_to(64))),
    "--gpus": _Option("4 (or 2:4)", _set("slots", _nodes)),
    "--ranks-per-node": _Option("2", _set("ranks_per_node", _count_to(256))),
    "--name": _Option("my-run", _set("name", _name)),
    "--push": _Option("a,b", _set("push", lambda text: () if text == "none" else _names(text))),
    "--with": _Option("data.json,conf/", lambda options, text: replace(options, files=_paths(options, text))),
    "--data": _Option("cinic10,OWNER/mnist", _data_sets),
    "--pull": _Option("a,b (or none)", _set("pull", lambda text: () if text == "none" else _names(text))),
    "--detach": _Option("", lambda options, _: replace(options, detach=True)),
    "--env": _Option("NAME=VALUE", _add_env),
    "--timeout": _Option("30m", _set("timeout_s", _seconds)),
    "--priority": _Option("40", _set("priority", _priority)),
    "--quiet": _Option("5m (or 0: never)", _set("quiet_after_s", _seconds_or_never)),
    "--image": _Option("NAME", _set("image", _image)),
    "--shm": _Option("2g", _set("shm_bytes", _bytes)),
    "--comm": _Option("auto", _comm),
    "--fault-tolerant": _Option("", lambda options, _: replace(options, fault_tolerant=True)),
    "--sync-env": _Option("", lambda options, _: replace(options, sync_env=True)),
    "--plain": _Option("", lambda options, _: replace(options, plain=True)),
}
