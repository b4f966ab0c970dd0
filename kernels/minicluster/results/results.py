"""Puts a job's result into the notebook. Only this module unpickles it, in the kernel of the job's owner."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from minicluster.capture.payload import CellPayload, LeftBehind, PayloadDamaged
from minicluster.capture.versions import here
from minicluster.changes.applying import SentObjects
from minicluster.changes.continued_pickle import JAX_AS_NUMPY
from minicluster.changes.reachability import leading, listed
from minicluster.changes.returning import VALUE
from minicluster.errors import MiniclusterError
from minicluster.pickling import pickling
from minicluster.pickling.pickling import ForeignCode, MissingModule
from minicluster.results.result_file import ResultFile
from minicluster.wire import Job

_SHOWN = 8
_JAX_AS_NUMPY = "Arrays of JAX came back as NumPy's, since this notebook has no JAX: pip install jax"


class ResultNotReadable(MiniclusterError):
    """The job has a result, but this kernel cannot open it."""


@dataclass(frozen=True)
class Result:
    """Returned names, the last expression's value, changes to sent objects, and objects left behind.

    notes: sentences from the ranks. rebound: returned names that the cell's own code does not assign.
    late: globals that were sent with functions. sent: the objects to which the changes are applied.
    """

    names: Mapping[str, Any]
    value: Any = None
    left_behind: tuple[LeftBehind, ...] = ()
    notes: tuple[str, ...] = ()
    changes: list[tuple[int, Any]] = field(default_factory=list)
    rebound: tuple[str, ...] = ()
    late: Mapping[str, Any] = field(default_factory=dict)
    sent: SentObjects | None = None

    def put(self, namespace: Mapping[str, Any], push: Callable[[dict[str, Any]], object]) -> None:
        """Put names and changes into the notebook: all of them, or none."""

        def names() -> None:
            late = {name: value for name, value in self.late.items() if name not in namespace}
            push({**late, **self.names})

        if self.sent is None:
            names()
        else:
            self.sent.put(self.changes, names)

    def summary(self) -> str:
        """Return the ranks' notes and the list of objects left behind, as lines; "" if there are none."""
        lines = list(self.notes)
        if self.left_behind:
            texts = [f"{item.name}{_kind(item)}: {item.reason}" for item in self.left_behind[:_SHOWN]]
            more = len(self.left_behind) - len(texts)
            lines.append("Left on the ranks: " + "; ".join(texts) + (f"; and {more} more" if more else ""))
        return "\n".join(lines)


def check_owner(job: Job, me: str) -> None:
    """Refuse the result of another user's cell: unpickling runs code that the result contains."""
    if me != job.owner:
        who = f"this notebook is {me!r}'s" if me else "and nobody knows whose this notebook is"
        raise ResultNotReadable(
            f"The result of job {job.id} belongs to {job.owner!r}, {who}.",
            "Results are opened only in the notebooks of the user who ran the job.",
        )


def read_result(result: ResultFile, job: Job, namespace: dict[str, Any], sent: SentObjects | None) -> Result:
    """Unpickle a result; its functions get `namespace` as their globals.

    sent: the objects that the notebook sent with the cell; the changes refer to them.
    Raises ResultNotReadable, ResultConflict; the notebook is then unchanged.
    """
    late: dict[str, Any] = {}
    if sent is not None and not sent.copies:
        sent.before_reading()
    try:
        body, broken = result.open(namespace, sent.shared if sent else None, late)
        stayed, notes = result.left_behind(), result.notes()
    except ForeignCode as error:
        raise ResultNotReadable(
            f"The result of job {job.id} cannot be opened here: {error}, made by Python {result.python}; "
            f"this is {here().python}.",
            f"Open it in a notebook with that Python (on the hub, say): %distribute result {job.id}",
        ) from error
    except Exception as error:
        # Unpickling may import and run any code of the cell.
        raise ResultNotReadable(
            f"The result of job {job.id} cannot be opened here: {type(error).__name__}: {error}",
            f"Install in this notebook what the ranks have, then: %distribute result {job.id}",
        ) from error
    names = dict(body["names"])
    left = [*stayed, *_missing(names), *_take_broken(names, body, broken)]
    changes, rebound = body["changes"], tuple(body["rebound"])
    notes = (*notes, *_notes_of_new(body.get("anew", {}), left))
    if body.get(JAX_AS_NUMPY):
        notes = (*notes, _JAX_AS_NUMPY)
    if sent is not None:
        changes, held = sent.hold_back(changes, broken, names)
        left += held
        if not sent.copies:
            sent.check_unchanged(changes, names, rebound, namespace, job.id)
    return Result(names, body["value"].get("_"), tuple(left), notes, changes, rebound, late, sent)


def _notes_of_new(anew: Mapping[str, str], left: list[LeftBehind]) -> Iterator[str]:
    """Return a sentence for each object that replaces an old one, to which other references still lead."""
    stayed = {item.name for item in left}
    for where, kind in anew.items():
        if where not in stayed:
            yield (
                f"`{where}` is a new object now: a {kind} cannot be changed in place like this. "
                "Names that this cell did not use still hold the old one."
            )


def _missing(names: dict[str, Any]) -> list[LeftBehind]:
    """Remove modules that cannot be imported here; return them."""
    gone = {name: item for name, item in names.items() if isinstance(item, MissingModule)}
    for name in gone:
        del names[name]
    return [LeftBehind(name, "module", f"not here ({item.reason})") for name, item in gone.items()]


def _take_broken(
    names: dict[str, Any], body: dict[str, Any], broken: Mapping[str, str]
) -> Iterator[LeftBehind]:
    """Remove names that could not be unpickled here; yield them with the reason."""
    for name, reason in broken.items():
        if name in names:
            kind = type(names.pop(name)).__name__
            yield LeftBehind(name, "" if kind == "Broken" else kind, f"could not be made here ({reason})")
        elif name == "_":
            body["value"].clear()
            yield LeftBehind(VALUE, "", f"could not be made here ({reason})")


def opened(file: BinaryIO, job: Job) -> ResultFile:
    """Read a result's head. Raises ResultNotReadable."""
    try:
        return ResultFile(file)
    except PayloadDamaged as error:
        raise ResultNotReadable(f"The result of job {job.id} is damaged: {error}") from error


def not_written(job: Job, error: OSError) -> ResultNotReadable:
    """Return the error for a result that could not be written to this machine's disk."""
    return ResultNotReadable(
        f"The result of job {job.id} could not be written to {tempfile.gettempdir()}: {error.strerror}.",
        f"Make room there, or set TMPDIR to another folder, then: %distribute result {job.id}",
    )


def _kind(item: LeftBehind) -> str:
    return f" ({item.type_name})" if item.type_name else ""


@dataclass(frozen=True)
class Copies:
    """New copies of the names sent with a cell, and of the objects to which the result refers."""

    names: Mapping[str, Any]
    sent: SentObjects

    def with_changes(self, result: Result, job: Job) -> Result:
        """Add the names whose objects the cell changed, and a note that these are new objects."""
        objects = self.sent.shared.objects
        ids = {id(objects[number]) for number, _ in result.changes}
        changed = leading(self.sent.tracker.anatomy, self.names, ids) if ids else []
        names = {name: self.names[name] for name in changed}
        note = (
            f"{listed(changed)}: new objects, with what job {job.id} made of them. The notebook's own could "
            "not be changed: the kernel was restarted, or they have the result already."
        )
        notes = (*result.notes, note) if changed else result.notes
        return replace(result, names={**names, **result.names}, notes=notes)


def copies_of(blob: bytes, job: Job, namespace: dict[str, Any]) -> Copies:
    """Unpickle a second time what was sent with a cell. Raises ResultNotReadable."""
    payload = CellPayload.from_bytes(blob)
    try:
        names, known = pickling.load_all(payload.open_names(), namespace)
    except Exception as error:
        # Unpickling may import and run any code of the cell's author.
        raise ResultNotReadable(
            f"What job {job.id} was sent with cannot be opened here: {type(error).__name__}: {error}",
            "Bring names that the cell made alone: %distribute result ID --pull NAMES",
        ) from error
    return Copies(names, SentObjects(known, names, copies=True))


def chosen(result: Result, pull: tuple[str, ...] | None, job: Job) -> Result:
    """Return the result with only these names and without the value; list missing names as left behind."""
    if pull is None:
        return result
    names = {name: result.names[name] for name in pull if name in result.names}
    left = {item.name: item for item in result.left_behind}
    lacking = [
        left.get(name, LeftBehind(name, "", f"is not among what job {job.id} made or changed"))
        for name in pull
        if name not in names
    ]
    return replace(result, names=names, value=None, left_behind=tuple(lacking), notes=())
