"""The files of custom policies: NAME.py in a folder that only the installer writes; parsed, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from minicluster.wire import OfferedOption, OfferedPolicy

ENTRY_POINTS = "minicluster.policies"
"""The group of entry points of policies in installed packages."""
KINDS: Mapping[str, type | tuple[type, ...]] = {"bool": bool, "int": int, "float": (int, float), "str": str}
"""The types of options: the name in an annotation, and the types of the value."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_MOST_BYTES = 256 << 10


def path_of(folder: Path, name: str) -> Path | None:
    """Return the file of a policy; None if there is none."""
    path = folder / f"{name}.py"
    return path if _NAME.fullmatch(name) and path.is_file() else None


def names(folder: Path) -> list[str]:
    """Return the names of the policies in a folder."""
    try:
        found = sorted(path.stem for path in folder.glob("*.py"))
    except OSError:
        return []
    return [name for name in found if path_of(folder, name)]


def about(folder: Path, name: str) -> OfferedPolicy:
    """Return a file's description: the first line of its docstring, and the options of its class."""
    path = folder / f"{name}.py"
    try:
        seen = path.stat()
        return _about(path, seen.st_mtime_ns, seen.st_size)
    except OSError as error:
        return OfferedPolicy(name=name, summary=f"{path.name} cannot be read: {error.strerror}.")


@lru_cache(maxsize=64)
def _about(path: Path, _changed_at: int, size: int) -> OfferedPolicy:
    try:
        parsed = ast.parse(_text(path, size))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return OfferedPolicy(name=path.stem, summary=f"{path.name} cannot be read: {error}.")
    summary = (ast.get_docstring(parsed) or "This lab's own policy.").split("\n", 1)[0]
    return OfferedPolicy(name=path.stem, summary=summary, options=tuple(_options(parsed)))


def _text(path: Path, size: int) -> bytes:
    if size > _MOST_BYTES:
        raise ValueError(f"it has {size} bytes, and may have {_MOST_BYTES}")
    return path.read_bytes()


def _options(parsed: ast.Module) -> Iterator[OfferedOption]:
    """Yield the fields of the class Policy that have a simple kind and value."""
    classes = [node for node in parsed.body if isinstance(node, ast.ClassDef) and node.name == "Policy"]
    for node in (node for one in classes for node in one.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            kind, default = ast.unparse(node.annotation), _constant(node.value)
            if default is not None and kind in KINDS and isinstance(default, KINDS[kind]):
                yield OfferedOption(name=node.target.id, kind=kind, default=default)


def _constant(value: ast.expr) -> bool | int | float | str | None:
    try:
        found = ast.literal_eval(value)
    except (ValueError, TypeError):
        return None
    return found if isinstance(found, bool | int | float | str) else None
