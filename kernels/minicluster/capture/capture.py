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
from minicluster.pickling.pickling import ANY_TARGET, TargetLimits, pack_names


class UnknownNames(MiniclusterError):
    """--push names that the notebook does not have."""


@dataclass(frozen=True)
class CaptureLimits:
    """Limits in bytes: names sent to the ranks, results, source of modules, files named by --with."""

    send_bytes: int
    result_bytes: int
    modules_bytes: int
    bundle_bytes: int = 50_000_000


@dataclass(frozen=True)
class NotebookContext:
    """What `capture` needs to know of the notebook.

    left_on_ranks: names that stayed on the ranks of earlier cells, with the reason.
    hidden: returns whether a name is IPython's own (In, Out, exit); such names are not sent.
    target: what the ranks cannot take from this notebook.
    shown_as: returns what tracebacks of this notebook call a file: "Cell In[3]".
    """

    namespace: dict[str, Any]
    folder: Path
    hidden: Callable[[str], bool]
    target: TargetLimits = ANY_TARGET
    shown_as: Callable[[str], str] = str
    left_on_ranks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Captured:
    """A cell as it is sent, and the notebook's objects that are sent with it.

    modules: top-level names of the modules that these objects refer to.
    """

    payload: CellPayload
    shared: SharedObjects
    names: Mapping[str, Any]
    modules: frozenset[str] = frozenset()


def capture(
    cell: CellSource,
    notebook: NotebookContext,
    limits: CaptureLimits,
    push: tuple[str, ...] | None = None,
    pull: tuple[str, ...] | None = None,
) -> Captured:
    """Pack a cell with what it needs.

    push: the names to send; None: those that the cell reads. pull: see CellPayload.
    Raises NotPicklable, ModulesNotSendable, UnknownNames.
    """
    names = names_to_send(cell, notebook, push)
    packed = pack_names(
        names, notebook.namespace, "Names that this cell needs", limits.send_bytes, notebook.target
    )
    imported = imports_of(ast.parse(cell.source))
    modules = collect(sorted(imported | packed.modules), notebook.folder, limits.modules_bytes)
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
        home=NotebookFolder.here(notebook.folder, not_sent(cell, names, notebook)),
        sources=sources_of(packed.files - {cell.filename}, notebook.shown_as),
    )
    return Captured(payload, packed.shared, names, packed.modules)


def names_to_send(
    cell: CellSource, notebook: NotebookContext, push: tuple[str, ...] | None
) -> dict[str, Any]:
    """Return the names to send. A name that the cell reads and the notebook lacks is not an error here."""
    if push is None:
        wanted = sorted(name for name in cell.reads if not notebook.hidden(name))
        return {name: notebook.namespace[name] for name in wanted if name in notebook.namespace}
    unknown = [name for name in push if name not in notebook.namespace]
    if unknown:
        raise UnknownNames(
            f"--push: the notebook has no {', '.join(map(repr, unknown))}.", _nearest(unknown, notebook)
        )
    return {name: notebook.namespace[name] for name in push}


def not_sent(cell: CellSource, sent: Mapping[str, Any], notebook: NotebookContext) -> dict[str, str]:
    """Return the names that the cell reads and that are not sent, with the reason."""
    missing = [name for name in sorted(cell.reads - sent.keys()) if not notebook.hidden(name)]
    reasons = {name: "is in the notebook and was not sent: --push names what travels." for name in missing}
    here = {name: reasons[name] for name in missing if name in notebook.namespace}
    return {name: notebook.left_on_ranks[name] for name in missing if name in notebook.left_on_ranks} | here


def _nearest(unknown: list[str], notebook: NotebookContext) -> str:
    known = [name for name in notebook.namespace if not name.startswith("_") and not notebook.hidden(name)]
    near = difflib.get_close_matches(unknown[0], known, 3)
    return f"Did you mean {' or '.join(near)}?" if near else "Run the cell that makes it first."
