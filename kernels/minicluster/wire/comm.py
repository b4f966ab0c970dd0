"""What `--comm` says: how the ranks of a training exchange what they have learned, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

AUTO = "auto"
DDP = "ddp"
ASYNC = "async"

Value = int | float | str


class CommWrong(ValueError):
    """`--comm` has a name, an option or a value that does not exist. hint: those that do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class CommNumber(NamedTuple):
    """An option that takes a number from least to most; a whole one if its default is whole."""

    default: int | float
    least: int | float
    most: int | float

    def read(self, text: str) -> Value | None:
        try:
            value = type(self.default)(text)
        except ValueError:
            return None
        return value if self.least <= value <= self.most else None

    @property
    def valid(self) -> str:
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        return f"{kind} from {self.least} to {self.most}"


class CommWord(NamedTuple):
    """An option that takes one of some words."""

    default: str
    words: tuple[str, ...]

    def read(self, text: str) -> Value | None:
        return text if text in self.words else None

    @property
    def valid(self) -> str:
        return " or ".join(self.words)


Option = CommNumber | CommWord

_BUCKET_MB = CommNumber(5, 1, 10_000)
_START = CommNumber(0, 0, 10**9)
_SENT = CommWord("bf16", ("bf16", "fp32"))

METHODS: Mapping[str, Mapping[str, Option]] = {
    AUTO: {},
    DDP: {"bucket_mb": _BUCKET_MB},
    "bf16": {"bucket_mb": _BUCKET_MB},
    "fp16": {"bucket_mb": _BUCKET_MB},
    # torch's PowerSGD needs two steps before it, after which the buckets stay as they are.
    "powersgd": {"rank": CommNumber(2, 1, 256), "start": CommNumber(10, 2, 10**9)},
    "localsgd": {"period": CommNumber(8, 1, 100_000), "start": _START, "sent": _SENT},
    "diloco": {
        "period": CommNumber(50, 1, 100_000),
        "start": _START,
        "sent": _SENT,
        "lr": CommNumber(0.7, 0.0, 10.0),
        "momentum": CommNumber(0.9, 0.0, 0.999),
    },
    ASYNC: {"period": CommNumber(8, 1, 100_000), "sent": _SENT},
}
"""The names of `--comm`, and the options of each.

start: steps in plain DistributedDataParallel before. period: steps between two averagings of the weights.
sent: the type in which weights' changes travel. rank: of PowerSGD's matrices. lr, momentum: of DiLoCo's outer
optimizer.
"""


@dataclass(frozen=True)
class CommMethod:
    """A name of METHODS, and those of its options that were given."""

    name: str
    given: Mapping[str, Value] = field(default_factory=dict[str, Value])

    def __getitem__(self, option: str) -> Value:
        return self.given.get(option, METHODS[self.name][option].default)

    def number(self, option: str) -> float:
        return float(self[option])

    def whole(self, option: str) -> int:
        return int(self[option])

    def __str__(self) -> str:
        options = ",".join(f"{name}={value}" for name, value in self.given.items())
        return f"{self.name}:{options}" if options else self.name


def comm_method(text: str) -> CommMethod:
    """Read NAME or NAME:option=value,option=value. Raises CommWrong."""
    name, colon, rest = text.partition(":")
    if name not in METHODS:
        raise CommWrong(f"{name!r} is no way to communicate", f"There are: {', '.join(METHODS)}.")
    if colon and not rest:
        raise CommWrong(f"{text!r} has a colon, but no option after it", _valid(name))
    return CommMethod(name, dict(_option(name, word) for word in rest.split(",")) if rest else {})


def not_fault_tolerant(method: CommMethod) -> str:
    """Return why ranks that come and go cannot communicate so; "" if they can."""
    if method.name in ("powersgd", ASYNC):
        return f"--comm {method.name} needs ranks that stay; fault-tolerant ones come and go"
    return ""


def _option(method: str, word: str) -> tuple[str, Value]:
    name, equals, text = word.partition("=")
    option = METHODS[method].get(name)
    if option is None or not equals:
        raise CommWrong(f"{word!r} is no option of {method}", _valid(method))
    value = option.read(text)
    if value is None:
        raise CommWrong(f"{method}'s {name} is {option.valid}, not {text!r}")
    return name, value


def _valid(method: str) -> str:
    if not METHODS[method]:
        return f"{method} has no options."
    options = (f"{name}={option.default}" for name, option in METHODS[method].items())
    return f"Its options, as they are by default: {method}:{','.join(options)}"
