"""The commands of `%serve`. Each is a function; its docstring is the command's help."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from minicluster.options import OptionWrong
from minicluster.parsing import values
from minicluster.parsing.parser import Argument
from minicluster.serving.options import ServeOptions, Verb, model_names, parse_serve_line, serve_help

if TYPE_CHECKING:
    from minicluster.magics import Distribute
    from minicluster.serving.calls import ModelCalls

_LOG_BYTES = 256 * 1024
_NAME = Argument("name", "a served model", model_names, {"metavar": "NAME"})


def verb(*arguments: Argument) -> Callable[[Callable[..., Any]], Verb]:
    """Make a command of a function."""
    return partial(Verb, arguments=arguments)


def _calls(magics: Distribute) -> ModelCalls:
    from minicluster.serving.calls import ModelCalls

    return ModelCalls(magics.service())


@verb()
def list_(magics: Distribute) -> Any:
    """Show your served models, with their requests and times."""
    from minicluster.serving.view import model_table

    return model_table(_calls(magics).models())


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
    job = (
        replica or max((one.job_id for one in details.replicas), default=None) or _last_replica(magics, name)
    )
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
    """Have so many replicas of a model."""
    from minicluster.serving.view import model_table
    from minicluster.wire.serving.models import ModelChange

    calls = _calls(magics)
    return model_table([calls.change(calls.named(name).id, ModelChange(replicas=replicas))])


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
    from minicluster.serving.live import LiveModel, version_before
    from minicluster.wire.serving.models import ModelChange

    calls = _calls(magics)
    details = calls.details(calls.named(name).id)
    wanted = version or version_before(details)
    calls.change(details.model.id, ModelChange(active_version=wanted))
    return LiveModel(calls, calls.details(details.model.id))


VERBS = {found.word: found for found in list(vars().values()) if isinstance(found, Verb)}


def parse(line: str) -> tuple[Verb, dict[str, Any]] | ServeOptions:
    """Return the command of a line with its arguments, or the options of a model.

    Raises OptionWrong, HelpRequested.
    """
    return parse_serve_line(line, VERBS)


def help_text() -> str:
    return serve_help(VERBS)
