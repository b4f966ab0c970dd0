"""The line of `%serve`: the model and its options, or a command for the models that are served."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from minicluster.options import OptionWrong, cell_arguments, cell_options
from minicluster.parsing import values
from minicluster.parsing.parser import HELP, Argument, HelpRequested, LineParser, split_line, unknown_word

if TYPE_CHECKING:
    from minicluster.client.client import JobServiceClient
    from minicluster.options import CellOptions
    from minicluster.wire.serving.models import AutoServe
    from minicluster.wire.serving.replicas import ReplicaOptions

ABOUT = (
    "Let a model of the notebook answer requests over HTTP: a module of torch, or a function. It runs in "
    "replicas on the cluster's nodes, with the notebook's code and image. The same name again is a new "
    "version of it."
)
_OF_CELLS = ("--image", "--data", "--env", "--with", "--shm", "--gpu-share", "--sync-env")
_NAME = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_OF_REPLICAS = {
    "batch": "batch",
    "batch_wait_s": "batch_wait",
    "timeout_s": "timeout",
    "open_requests": "requests",
    "request_bytes": "request_size",
}
"""The fields of ReplicaOptions, and the arguments that they come from."""


def better(text: str) -> AutoServe:
    """Read the metric of --auto, and whether high or low values are good."""
    from minicluster.wire.serving.models import AutoServe

    metric, _, way = text.rpartition(":")
    if way not in ("min", "max"):
        metric, way = text, "min"
    if not 1 <= len(metric) <= 200:
        raise ArgumentTypeError(f"{text!r} is not METRIC, METRIC:min or METRIC:max")
    return AutoServe(metric=metric, maximize=way == "max")


def _short_time(text: str) -> float:
    """Read a time of milliseconds or seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)", text)
    if not match:
        raise ArgumentTypeError(f"{text!r} is not a time such as 5ms or 0.1s")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


def _number(text: str) -> float:
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise ArgumentTypeError(f"{text!r} is not a number")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([km])b?", text.lower())
    if not match:
        raise ArgumentTypeError(f"{text!r} is not a size such as 64k or 4m")
    return int(float(match[1]) * {"k": 1 << 10, "m": 1 << 20}[match[2]])


def model_names(service: JobServiceClient) -> list[str]:
    from minicluster.serving.calls import ModelCalls

    return [one.name for one in ModelCalls(service).models()]


_OWN = (
    Argument("model", "the module or function, as the notebook names it", None, {"metavar": "MODEL"}),
    Argument(
        "--name", "its name in addresses: small letters, digits, dashes; by default the variable's", None,
        {"metavar": "digits", "type": values.matching(_NAME, "a name of small letters, digits and dashes")},
    ),
    Argument(
        "--example", "a variable with an example of its input, with the batch dimension", None,
        {"metavar": "x", "required": True},
    ),
    Argument(
        "--replicas", "number of replicas, each on a node; 1 by default", None,
        {"metavar": "2", "type": values.number(1, 64)},
    ),
    Argument(
        "--gpus-per-replica", "number of GPUs of each replica; without GPUs, of CPU slots", None,
        {"metavar": "1", "type": values.number(1, 64), "default": 1},
    ),
    Argument(
        "--batch", "most requests that are computed together; 1, the default: each by itself", None,
        {"metavar": "16", "type": values.number(1, 1024), "default": 1},
    ),
    Argument(
        "--batch-wait", "how long the first request of a batch waits for others; 5ms by default", None,
        {"metavar": "5ms", "type": _short_time, "default": 0.005},
    ),
    Argument(
        "--timeout", "how long a request may take, with its wait; 30s by default", None,
        {"metavar": "30s", "type": values.seconds, "default": 30.0},
    ),
    Argument(
        "--requests", "most requests that HAProxy gives a replica at once; others wait; 64 by default", None,
        {"metavar": "64", "type": values.number(1, 4096), "default": 64},
    ),
    Argument(
        "--request-size", "the longest request; 4m by default", None,
        {"metavar": "4m", "type": _bytes, "default": 4 << 20},
    ),
    Argument("--shared", "let all users of the hub ask it", None, {"action": "store_true"}),
    Argument(
        "--open", "let everybody ask it, without a token, if an admin allows that", None,
        {"action": "store_true"},
    ),
    Argument(
        "--auto", "serve what a later job leaves, if its METRIC is lower (:min) or higher (:max)", None,
        {"metavar": "METRIC:max", "type": better},
    ),
    Argument(
        "--value", "the metric of --auto of this version, if you know it", None,
        {"metavar": "0.93", "type": _number},
    ),
    Argument("--detach", "return at once, and do not wait until it answers", None, {"action": "store_true"}),
)  # fmt: skip


@dataclass(frozen=True)
class ServeOptions:
    """The options of a line. replica: how each replica answers. cell: what each shares with a cell."""

    model: str
    name: str
    example: str
    replicas: int | None
    replica: ReplicaOptions
    shared: bool
    is_open: bool
    auto: AutoServe | None
    value: float | None
    detach: bool
    cell: CellOptions

    @property
    def variable(self) -> str:
        """The name that holds the model; "" if it is an expression."""
        return self.model if self.model.isidentifier() else ""


def serve_arguments() -> Iterator[Argument]:
    """Return the arguments of a line that serves a model."""
    yield from _OWN
    yield from (one for one in cell_arguments() if one.name in _OF_CELLS)


@cache
def serve_parser() -> LineParser:
    return LineParser("%serve", ABOUT, serve_arguments(), hint="%serve? explains the options and commands.")


def serve_options(**given: Any) -> ServeOptions:
    """Check the options of a line together. Raises OptionWrong."""
    from minicluster.wire import CountRange

    own = {name: given.pop(name) for name in _own_names()}
    cell = cell_options(**given)
    slots = own["gpus_per_replica"]
    if cell.gpu_share and slots != 1:
        raise OptionWrong("--gpu-share is half of one GPU.", "Leave out --gpus-per-replica.")
    if own["value"] is not None and own["auto"] is None:
        raise OptionWrong("--value is the metric of --auto.", "Add --auto METRIC:max, or leave it out.")
    name = _checked_name(own["name"], own["model"], own["example"])
    one = CountRange(min=1, max=1)
    return ServeOptions(
        model=own["model"],
        name=name,
        example=own["example"],
        replicas=own["replicas"],
        replica=_replica_options(own),
        shared=own["shared"],
        is_open=own["open"],
        auto=own["auto"],
        value=own["value"],
        detach=own["detach"],
        cell=replace(cell, nodes=one, slots_per_node=slots, ranks_per_node=1, name=name),
    )


def _own_names() -> list[str]:
    return [one.name.removeprefix("--").replace("-", "_") for one in _OWN]


def _replica_options(own: Mapping[str, Any]) -> ReplicaOptions:
    from pydantic import ValidationError

    from minicluster.wire.serving.replicas import ReplicaOptions

    if own["batch_wait"] >= own["timeout"]:
        raise OptionWrong("--batch-wait is not below --timeout.", "Wait for milliseconds: --batch-wait 5ms.")
    try:
        return ReplicaOptions(**{field: own[name] for field, name in _OF_REPLICAS.items()})
    except ValidationError as error:
        wrong = error.errors()[0]
        flag = "--" + _OF_REPLICAS[str(wrong["loc"][0])].replace("_", "-")
        raise OptionWrong(
            f"{flag}: {wrong['msg']} (seconds, or bytes).", "%serve? explains the options."
        ) from None


def _checked_name(name: str | None, model: str, example: str) -> str:
    """Return the model's name: by default that of its variable, as addresses have it. Raises OptionWrong."""
    from minicluster.wire.serving.replicas import VERBS

    name = name or model.lower().replace("_", "-").replace(".", "-")
    if not re.fullmatch(_NAME, name):
        raise OptionWrong(
            f"{model} makes no name for an address.", f"Like this: %serve {model} --name digits"
        )
    if name in VERBS:
        raise OptionWrong(
            f"{name} is a command of %serve; a model needs another name.",
            f"Like this: %serve {model} --name my-{name} --example {example}",
        )
    return name


# Commands.


@dataclass(frozen=True)
class Verb:
    """A command of `%serve`. run: gets the notebook's magics, and the line's arguments by name."""

    run: Callable[..., Any]
    arguments: tuple[Argument, ...] = ()

    @property
    def word(self) -> str:
        return self.run.__name__.removesuffix("_")

    @property
    def parser(self) -> LineParser:
        about = (self.run.__doc__ or "").strip()
        return LineParser(f"%serve {self.word}", about, self.arguments)


def parse_serve_line(line: str, verbs: dict[str, Verb]) -> tuple[Verb, dict[str, Any]] | ServeOptions:
    """Return the command of a line with its arguments, or the options of a model.

    Raises OptionWrong, HelpRequested.
    """
    words = split_line(line) or ["list"]
    if words[0] in (*HELP, "help"):
        raise HelpRequested(serve_help(verbs))
    verb = verbs.get(words[0])
    if verb is None:
        if len(words) == 1 and not words[0].isidentifier():
            raise unknown_word(words[0], verbs, f"%serve {' | '.join(verbs)}, or %serve MODEL --example x")
        return serve_options(**vars(serve_parser().parse_words(words)))
    if any(word.partition("=")[0] in ("--name", "--example") for word in words):
        raise OptionWrong(
            f"{words[0]} is a command of %serve, so no model of the notebook can have that name here.",
            f"Give it another one: my_{words[0]} = {words[0]}, then %serve my_{words[0]} --name ...",
        )
    return verb, vars(verb.parser.parse_words(words[1:]))


def serve_help(verbs: dict[str, Verb]) -> str:
    """Return the options and commands, as %serve? shows them."""
    rows = {verb.parser.line: (verb.run.__doc__ or "").strip() for verb in verbs.values()}
    width = max(map(len, rows))
    lines = [f"  {usage.ljust(width)}  {about}" for usage, about in rows.items()]
    return "\n".join([serve_parser().format_help(), "commands:", *lines])
