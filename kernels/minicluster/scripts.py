"""`%distribute run train.py --lr 0.1`: runs a script as torchrun does."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minicluster.capture.capture import Captured
from minicluster.capture.cell import CellSource
from minicluster.capture.modules import collect, imports_of
from minicluster.capture.notebook_folder import NotebookFolder
from minicluster.capture.payload import CellPayload
from minicluster.capture.versions import here
from minicluster.cell_run import run_payload
from minicluster.changes.shared_objects import SharedObjects
from minicluster.errors import MiniclusterError
from minicluster.options import CellOptions, OptionWrong, cell_options
from minicluster.parsing.values import local_path
from minicluster.results.results import Result

if TYPE_CHECKING:
    from minicluster.magics import Distribute

_LONGEST_NAME = 100


class ScriptMissing(MiniclusterError):
    """The script does not exist, or cannot be read."""


def run(magics: Distribute, words: Sequence[str], given: Mapping[str, Any]) -> Any:
    """Run a script on the cluster. given: the line's options. Raises as `run_cell`, and ScriptMissing."""
    if not words:
        raise OptionWrong("%distribute run needs a script.", "Like this: %distribute run --nodes 3 train.py")
    script, *arguments = words
    options = _options(cell_options(**given), script)
    context = magics.run_context(options.plain, magics.service_or_none() if options.dry_run else None)
    cell = CellSource.parse(_text(script), script)
    packed = Captured(pack(cell, arguments, context.limits.modules_bytes), SharedObjects({}), {})
    if options.dry_run:
        from minicluster.dry_run.run import dry_run

        return dry_run(packed, options, context)
    outcome = run_payload(packed, cell, options, context)
    return magics.apply_result(outcome) if isinstance(outcome, Result) else outcome


def pack(cell: CellSource, arguments: Sequence[str], modules_bytes: int) -> CellPayload:
    """Pack a script with the modules beside it that it imports. No names of the notebook are sent."""
    path = local_path(cell.filename)
    with _first_on_path(path.absolute().parent) as folder:
        modules = collect(sorted(imports_of(ast.parse(cell.source))), folder, modules_bytes)
    return CellPayload(
        source=cell.source,
        filename=cell.filename,
        modules={**modules, path.name: cell.source.encode()},
        pull=(),
        versions=here().model_dump(),
        home=NotebookFolder.here(Path.cwd(), {}),
        script=str(path),
        arguments=tuple(arguments),
    )


def _options(options: CellOptions, script: str) -> CellOptions:
    if options.push is not None or options.pull is not None or options.gather:
        raise OptionWrong(
            "%distribute run: a script takes no names from the notebook and gives none back.",
            "Leave --push, --pull and --gather out; what the script writes into mc.output() comes back.",
        )
    name = Path(script).name[:_LONGEST_NAME] if options.name is None else options.name
    path = local_path(script)
    beside = not path.is_absolute() and ".." not in path.parts
    files = (*options.files, str(path)) if options.files and beside else options.files
    return replace(options, name=name, files=files)


def _text(script: str) -> str:
    try:
        return local_path(script).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise ScriptMissing(f"{script} cannot be run: {why} (in {Path.cwd()}).") from None


@contextmanager
def _first_on_path(folder: Path) -> Iterator[Path]:
    """Put a folder first on the import path, as Python does when it runs a script in it."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield folder
    finally:
        sys.path[:] = before
