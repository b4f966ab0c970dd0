"""From a cell and the notebook's namespace to the blob that goes to the ranks."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minicluster.capture.cell import CellSource
from minicluster.capture.modules import collect, imports_of
from minicluster.capture.notebook_folder import NotebookFolder
from minicluster.capture.payload import CellPayload
from minicluster.capture.sources import sources_of
from minicluster.capture.versions import here
from minicluster.changes.shared_objects import SharedObjects
from minicluster.errors import MiniclusterError
from minicluster.pickling.pickling import ANY_READER, PickleReader, pack_names


class UnknownNames(MiniclusterError):
    """--push names that the notebook does not have."""


@dataclass(frozen=True)
class CaptureLimits:
    """Bytes that may travel: names to the ranks, results back, source of modules, files named by --with."""

    send_bytes: int
    result_bytes: int
    modules_bytes: int
    bundle_bytes: int = 50_000_000


@dataclass(frozen=True)
class NotebookContext:
    """Where a cell stands: the notebook's namespace and folder.

    stayed: names that stayed on the ranks of earlier cells, with the reason.
    hidden: tells of a name whether it is the notebook's own (In, Out, exit) and stays there.
    reader: what the ranks cannot take from this notebook.
    shown_as: what a traceback of this notebook calls a file: "Cell In[3]".
    """

    namespace: dict[str, Any]
    folder: Path
    hidden: Callable[[str], bool]
    reader: PickleReader = ANY_READER
    shown_as: Callable[[str], str] = str
    stayed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Captured:
    """A cell as it travels, and the notebook's objects that go with it."""

    payload: CellPayload
    shared: SharedObjects
    names: Mapping[str, Any]


def capture(
    cell: CellSource,
    around: NotebookContext,
    limits: CaptureLimits,
    push: tuple[str, ...] | None = None,
    pull: tuple[str, ...] | None = None,
) -> Captured:
    """Pack a cell with what it needs.

    push: the names that travel; None: those that the cell reads. pull: see CellPayload.
    Raises NotPicklable, ModulesNotSendable, UnknownNames.
    """
    names = names_to_send(cell, around, push)
    packed = pack_names(
        names, around.namespace, "Names that this cell needs", limits.send_bytes, around.reader
    )
    imported = imports_of(ast.parse(cell.source))
    modules = collect(sorted(imported | packed.modules), around.folder, limits.modules_bytes)
    payload = CellPayload(
        source=cell.source,
        filename=cell.filename,
        names=packed.data if names else b"",
        shared=packed.shared.shared() if names and pull != () else b"",
        parts=packed.parts,
        modules=modules,
        pull=pull,
        result_limit_bytes=limits.result_bytes,
        versions=here().model_dump(),
        home=NotebookFolder.here(around.folder, not_sent(cell, names, around)),
        sources=sources_of(packed.files - {cell.filename}, around.shown_as),
    )
    return Captured(payload, packed.shared, names)


def names_to_send(cell: CellSource, around: NotebookContext, push: tuple[str, ...] | None) -> dict[str, Any]:
    """Choose what travels. What the cell reads and the notebook lacks is the cell's affair."""
    if push is None:
        wanted = sorted(name for name in cell.reads if not around.hidden(name))
        return {name: around.namespace[name] for name in wanted if name in around.namespace}
    unknown = [name for name in push if name not in around.namespace]
    if unknown:
        raise UnknownNames(
            f"--push: the notebook has no {', '.join(map(repr, unknown))}.", _nearest(unknown, around)
        )
    return {name: around.namespace[name] for name in push}


def not_sent(cell: CellSource, sent: Mapping[str, Any], around: NotebookContext) -> dict[str, str]:
    """Say of the names that the cell reads and that do not travel why that is so."""
    missing = [name for name in sorted(cell.reads - sent.keys()) if not around.hidden(name)]
    reasons = {name: "is in the notebook and was not sent: --push names what travels." for name in missing}
    here = {name: reasons[name] for name in missing if name in around.namespace}
    return {name: around.stayed[name] for name in missing if name in around.stayed} | here


def _nearest(unknown: list[str], around: NotebookContext) -> str:
    known = [name for name in around.namespace if not name.startswith("_") and not around.hidden(name)]
    near = difflib.get_close_matches(unknown[0], known, 3)
    return f"Did you mean {' or '.join(near)}?" if near else "Run the cell that makes it first."
