"""The types of arguments, as argparse takes them: each converts a text into a value, or raises."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minicluster.parsing.parser import OptionWrong

if TYPE_CHECKING:
    from minicluster.wire import CountRange, DataUse
    from minicluster.wire.training.framework import Framework

_DATA_SET = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_SIZE_UNITS = {"m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIME_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_ENDED = {"mxnet": "MXNet was retired in 2023: use torch, or Keras in place of Gluon."}


def number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return read


def matching(pattern: str, what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not re.fullmatch(pattern, text, re.DOTALL):
            raise ArgumentTypeError(f"{text!r} is not {what}")
        return text

    return read


def listed(pattern: str, what: str) -> Callable[[str], tuple[str, ...]]:
    """Read words between commas, at least one."""
    one = matching(pattern, what)
    return lambda text: tuple(map(one, list(filter(None, map(str.strip, text.split(",")))) or [text]))


job_name = matching(".{1,100}", "a name of 1 to 100 characters")
data_set = matching(_DATA_SET, "1 to 64 letters, digits, dots, dashes and underscores")
image = matching("[!-~]{1,512}", "the name of an image")
tags = listed(r"[^\s,\x00-\x1f][^,\x00-\x1f]{0,63}", "a tag of 1 to 64 characters")
files = listed("[^,]*[^, ][^,]*", "a file or folder beside the notebook")
_data_sets = listed(f"([^/\\s]+/)?{_DATA_SET}(@[0-9a-f]{{8,64}})?", "the name of a data set, or NAME@VERSION")
_variables = listed(r"[^\W\d]\w*", "the name of a variable")


def variables(text: str) -> tuple[str, ...]:
    return () if text == "none" else _variables(text)


def gpu_share(text: str) -> float:
    from minicluster.wire import GPU_SHARE

    if text not in (f"{GPU_SHARE}", ".5", "1/2"):
        raise ArgumentTypeError(
            f"{text!r}: a GPU is shared by halves, {GPU_SHARE}; without it, cells have whole ones"
        )
    return GPU_SHARE


def count_range(text: str) -> CountRange:
    # Imported here, as below: loading the extension needs no message of the job service.
    from minicluster.wire import CountRange

    count = number(1, 10_000)
    least, _, most = text.partition(":")
    if count(least) > count(most or least):
        raise ArgumentTypeError(f"the minimum of {text} is above the maximum")
    return CountRange(min=count(least), max=count(most or least))


def data_uses(text: str) -> tuple[DataUse, ...]:
    from minicluster.wire import DataUse

    named = (word.partition("@") for word in _data_sets(text))
    return tuple(DataUse(name=name, manifest_sha256=version) for name, _, version in named)


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text)
    if not match or match[2] not in _TIME_UNITS or float(match[1]) <= 0:
        raise ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m or 2h")
    return float(match[1]) * _TIME_UNITS[match[2]]


def seconds_or_never(text: str) -> float:
    return 0.0 if text == "0" else seconds(text)


def size_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mgt])(?:i?b)?", text.lower())
    size = int(float(match[1]) * _SIZE_UNITS[match[2]]) if match else 0
    if not 1 << 20 <= size <= 1 << 44:
        raise ArgumentTypeError(f"{text!r} is not a size from 1m to 16t, such as 512m or 2g")
    return size


def rate(text: str) -> float:
    """Read a network's rate in Gbit/s."""
    match = re.fullmatch(r"(\d{1,4}(?:\.\d+)?)\s*(?:g|gbit|gbit/s)?", text.lower())
    if not match or not 0.01 <= float(match[1]) <= 3200:
        raise ArgumentTypeError(f"{text!r} is not a rate from 0.01 to 3200 Gbit/s, such as 1 or 2.5")
    return float(match[1])


def comm(text: str) -> str:
    """Return a way to communicate, as `--comm` takes it."""
    from minicluster.wire.comm import CommWrong, comm_method

    try:
        return str(comm_method(text))
    except CommWrong as wrong:
        raise OptionWrong(f"--comm: {wrong}.", wrong.hint) from None


def framework(text: str) -> Framework:
    from minicluster.wire.training.framework import Framework

    if text in tuple(Framework):
        return Framework(text)
    known = f"There are: {', '.join(Framework)}."
    hint = f"{known} {_ENDED.get(text.lower(), '')}".strip()
    raise OptionWrong(f"--framework: {text!r} is none that is known here.", hint)


def environment(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return {name: value}


@dataclass(frozen=True)
class SweepId:
    """The number of a sweep, which is written sweep-3: jobs have numbers of their own."""

    id: int


def job_or_sweep(text: str) -> int | SweepId:
    found = re.fullmatch(r"(?:(sweep)-)?(\d{1,15})", text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not the number of a job, or a sweep as in sweep-3")
    return SweepId(int(found[2])) if found[1] else int(found[2])


def local_path(text: str) -> Path:
    """Return a path on this machine; ~ is expanded. Raises OptionWrong."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise OptionWrong(f"{text}: there is no such user here.", "~/ is your own home.") from None
