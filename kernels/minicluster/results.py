"""A job's result in the notebook: unpickled only here, in its owner's own kernel."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from .errors import MiniclusterError
from .payload import LeftBehind, PayloadDamaged
from .pickling import ForeignCode, MissingModule
from .result_file import ResultFile
from .versions import here
from .wire import Job

_SHOWN = 8


class ResultNotReadable(MiniclusterError):
    """A result that is there and cannot be opened in this kernel."""


@dataclass(frozen=True)
class Result:
    """Names that came back, the last expression's value, and what stayed behind."""

    names: Mapping[str, Any]
    value: Any
    left_behind: tuple[LeftBehind, ...]

    def summary(self) -> str:
        """Say in one line what stayed on the ranks; empty when all came."""
        if not self.left_behind:
            return ""
        told = [f"{item.name}{_kind(item)}: {item.reason}" for item in self.left_behind[:_SHOWN]]
        more = len(self.left_behind) - len(told)
        return "Left on the ranks: " + "; ".join(told) + (f"; and {more} more" if more else "")


def check_owner(job: Job, me: str) -> None:
    """Refuse results that someone else's cell made: opening a pickle runs what it says."""
    if me != job.owner:
        who = f"this notebook is {me!r}'s" if me else "and nobody knows whose this notebook is"
        raise ResultNotReadable(
            f"The result of job {job.id} belongs to {job.owner!r}, {who}.",
            "Results are opened only in the notebooks of the user who ran the job.",
        )


def open_result(file: BinaryIO, job: Job, namespace: dict[str, Any]) -> Result:
    """Unpickle a result from its file; its functions get `namespace` as their globals.

    Raises ResultNotReadable, and then the result is still kept by the service.
    """
    try:
        result = ResultFile(file)
    except PayloadDamaged as error:
        raise ResultNotReadable(f"The result of job {job.id} is damaged: {error}") from error
    try:
        names = result.open("names", namespace)
        value = result.open("value", namespace).get("_")
        stayed = result.left_behind()
    except ForeignCode as error:
        raise ResultNotReadable(
            f"The result of job {job.id} cannot be opened here: {error}, made by Python {result.python}; "
            f"this is {here().python}.",
            f"Open it in a notebook with that Python (on the hub, say): %distribute result {job.id}",
        ) from error
    except Exception as error:
        # A pickle may import and run anything that the cell's author used.
        raise ResultNotReadable(
            f"The result of job {job.id} cannot be opened here: {type(error).__name__}: {error}",
            f"Install in this notebook what the ranks have, then: %distribute result {job.id}",
        ) from error
    missing = {name: item for name, item in names.items() if isinstance(item, MissingModule)}
    left = (LeftBehind(name, "module", f"not here ({item.reason})") for name, item in missing.items())
    kept = {name: item for name, item in names.items() if name not in missing}
    return Result(kept, value, (*stayed, *left))


def not_written(job: Job, error: OSError) -> ResultNotReadable:
    """Say that this machine's disk did not take a result."""
    return ResultNotReadable(
        f"The result of job {job.id} could not be written to {tempfile.gettempdir()}: {error.strerror}.",
        f"Make room there, or set TMPDIR to another folder, then: %distribute result {job.id}",
    )


def _kind(item: LeftBehind) -> str:
    return f" ({item.type_name})" if item.type_name else ""
