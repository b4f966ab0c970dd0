"""What is typed behind options, as values; each raises ValueError with what is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from minicluster.parsing.parser import OptionWrong

_MOST_DATA_SETS = 32
_SIZE_UNITS = {"m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIME_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def count(text: str, most: int = 10_000) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ValueError(f"a number from 1 to {most} is needed")
    return int(text)


def count_to(most: int) -> Callable[[str], int]:
    return lambda text: count(text, most)


def job_id(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("the number of a job is needed")
    return int(text)


def rank(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("a rank's number is needed")
    return int(text)


def priority(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 99:
        raise ValueError("a number from 1 to 99 is needed; 50 is that of every job")
    return int(text)


def count_range(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    both = count(least), count(most or least)
    if both[0] > both[1]:
        raise ValueError("the least is above the most")
    return both


def names(text: str) -> tuple[str, ...]:
    """Read names of variables; `none` is no name."""
    if text == "none":
        return ()
    found = parts(text)
    wrong = [name for name in found if not name.isidentifier()]
    if wrong or not found:
        raise ValueError(f"{wrong[0] if wrong else text!r} is not a variable's name")
    return found


def paths(text: str) -> tuple[str, ...]:
    found = parts(text)
    if not found:
        raise ValueError("files or folders beside the notebook are needed")
    return found


def data_sets(text: str) -> tuple[str, ...]:
    found = parts(text)
    wrong = [name for name in found if not re.fullmatch(r"([^/\s]+/)?[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name)]
    if wrong or not found:
        raise ValueError(f"{wrong[0] if wrong else text!r} is no name of a data set")
    return found


def more_data_sets(before: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    every = tuple(dict.fromkeys((*before, *more)))
    if len(every) > _MOST_DATA_SETS:
        raise ValueError(f"at most {_MOST_DATA_SETS} data sets can be named")
    return every


def new_data_set(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise ValueError("1 to 64 letters, digits, dots, dashes and underscores are a data set's name")
    return text


def parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def job_name(text: str) -> str:
    if not 0 < len(text) <= 100:
        raise ValueError("1 to 100 characters are allowed")
    return text


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text)
    if not match or match[2] not in _TIME_UNITS or float(match[1]) <= 0:
        raise ValueError("a time is needed: 90s, 30m, 2h")
    return float(match[1]) * _TIME_UNITS[match[2]]


def seconds_or_never(text: str) -> float:
    return 0.0 if text == "0" else seconds(text)


def size_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mgt])(?:i?b)?", text.lower())
    size = int(float(match[1]) * _SIZE_UNITS[match[2]]) if match else 0
    if not 1 << 20 <= size <= 1 << 44:
        raise ValueError("a size from 1m on is needed: 512m, 2g")
    return size


def image(text: str) -> str:
    if not 0 < len(text) <= 512 or not text.isprintable() or " " in text:
        raise ValueError("the name of an image is needed")
    return text


def variable(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("a name, =, and a value are needed")
    return {name: value}


def communication(text: str) -> str:
    if text in ("auto", "ddp"):
        return text
    if text in ("bf16", "powersgd", "localsgd", "diloco"):
        raise ValueError("compressed communication comes in a later version; auto and ddp are there")
    raise ValueError("auto and ddp are there")


def local_path(text: str) -> Path:
    """Return a path of this machine, as people write it. Raises OptionWrong."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise OptionWrong(f"{text}: there is no such user here.", "~/ is your own home.") from None
