"""The commands of `%serve`. Each is a function; its docstring is the command's help."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from minicluster.options import OptionWrong
from minicluster.parsing import values
from minicluster.parsing.parser import Argument
from minicluster.serving.options import (
    ServeOptions,
    Verb,
    better,
    model_names,
    parse_serve_line,
    serve_help,
)

if TYPE_CHECKING:
    from minicluster.magics import Distribute
    from minicluster.serving.calls import ModelCalls
    from minicluster.wire.serving.models import AutoServe, ModelChange, ServedModel

_LOG_BYTES = 256 * 1024
_NAME = Argument("name", "a served model", model_names, {"metavar": "NAME"})


def verb(*arguments: Argument) -> Callable[[Callable[..., Any]], Verb]:
    """Make a command of a function."""
    return partial(Verb, arguments=arguments)


def better_or_off(text: str) -> AutoServe | None:
    return None if text == "off" else better(text)


def _calls(magics: Distribute) -> ModelCalls:
    from minicluster.serving.calls import ModelCalls

    return ModelCalls(magics.service())


def _changed(magics: Distribute, name: str, change: ModelChange) -> Any:
    """Change a model; return its row of the list."""
    from minicluster.serving.view import model_table

    calls = _calls(magics)
    return model_table([calls.change(calls.named(name).id, change)])


@verb()
def list_(magics: Distribute) -> Any:
    """Show your served models, with their requests and times."""
    from minicluster.serving.view import model_table

    newest: dict[str, ServedModel] = {}
    for model in _calls(magics).models():
        # Those before it with the same name are stopped.
        newest.setdefault(model.name, model)
    return model_table(list(newest.values()))


@verb(
    _NAME,
    Argument(
        "--replica", "the job of a replica; the newest one by default", None, {"metavar": "ID", "type": int}
    ),
)
def logs(magics: Distribute, name: str, replica: int | None) -> None:
    """Show the end of what a replica printed."""
    calls = _calls(magics)
    details = calls.details(calls.named(name).id)
    newest = max((one.job_id for one in details.replicas), default=None)
    job = replica or newest or _last_replica(magics, name)
    text, left_out_bytes = magics.service().log(job, 0, _LOG_BYTES)
    print(f"Replica {job}:{' …' if left_out_bytes else ''}")  # noqa: T201
    print(text or "It has printed nothing so far.", end="" if text.endswith("\n") else "\n")  # noqa: T201


def _last_replica(magics: Distribute, name: str) -> int:
    """Return the newest replica of a model, also one that ended. Raises OptionWrong."""
    jobs = [job.id for job in magics.service().jobs() if job.name.startswith(f"{name} v")]
    if not jobs:
        raise OptionWrong(f"{name} has had no replica.", f"%serve versions {name} shows why.")
    return max(jobs)


@verb(_NAME)
def stop(magics: Distribute, name: str) -> Any:
    """Serve a model no more; requests that replicas have are answered."""
    from minicluster.serving.view import model_table

    calls = _calls(magics)
    return model_table([calls.stop(calls.named(name).id)])


@verb(_NAME, Argument("replicas", "how many", None, {"metavar": "N", "type": values.number(1, 64)}))
def scale(magics: Distribute, name: str, replicas: int) -> Any:
    """Have this number of replicas of a model."""
    from minicluster.wire.serving.models import ModelChange

    return _changed(magics, name, ModelChange(replicas=replicas))


@verb(
    _NAME,
    Argument(
        "metric", "a metric that jobs log, with :min or :max; off: no job is looked at", None,
        {"metavar": "METRIC:max|off", "type": better_or_off},
    ),
)  # fmt: skip
def auto(magics: Distribute, name: str, metric: AutoServe | None) -> Any:
    """Serve what a later job leaves, if its metric is better; `off` ends that."""
    from minicluster.wire.serving.models import ModelChange

    return _changed(magics, name, ModelChange(auto=metric, auto_off=metric is None))


@verb(_NAME)
def versions(magics: Distribute, name: str) -> Any:
    """Show a model's versions, and why each is there."""
    from minicluster.serving.view import version_table

    calls = _calls(magics)
    return version_table(calls.details(calls.named(name).id))


@verb(
    _NAME,
    Argument(
        "version", "its number; the one before by default", None,
        {"metavar": "VERSION", "type": values.number(1, 10**9), "nargs": "?"},
    ),
)  # fmt: skip
def back(magics: Distribute, name: str, version: int | None) -> Any:
    """Serve an earlier version of a model again; no request is dropped."""
    from minicluster.serving.live import LiveModel

    calls = _calls(magics)
    live = LiveModel(calls, calls.details(calls.named(name).id))
    live.back(version)
    return live


VERBS = {found.word: found for found in list(vars().values()) if isinstance(found, Verb)}


def parse(line: str) -> tuple[Verb, dict[str, Any]] | ServeOptions:
    """Return the command of a line with its arguments, or the options of a model.

    Raises OptionWrong, HelpRequested.
    """
    return parse_serve_line(line, VERBS)


def help_text() -> str:
    return serve_help(VERBS)
