"""Modules beside the notebook. No node has them, so their source is sent with the cell.

The source is read from the disk: a module that was edited after its import is sent as edited.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from minicluster.errors import MiniclusterError
from minicluster.pickling.pickling import readable_size

_INSTALLED = frozenset({"site-packages", "dist-packages"})


class ModulesNotSendable(MiniclusterError):
    """Modules beside the notebook that cannot be sent as source."""


def collect(modules: Iterable[str], folder: Path, limit_bytes: int) -> dict[str, bytes]:
    """Read the source of those of these modules that are under `folder`, and of those that they import.

    modules: top-level names; installed modules are skipped. Returns each file's content by its path
    relative to the entry of the import path. Raises ModulesNotSendable.
    """
    found: dict[str, bytes] = {}
    todo = list(dict.fromkeys(modules))
    for name in todo:
        for path, relative in _files_of(name, folder):
            found[relative] = path.read_bytes()
            todo.extend(new for new in imports_in(found[relative]) if new not in todo)
    size = sum(map(len, found.values()))
    if size > limit_bytes:
        largest = sorted(found, key=lambda path: -len(found[path]))[:3]
        text = ", ".join(f"{path} ({readable_size(len(found[path]))})" for path in largest)
        raise ModulesNotSendable(
            f"The modules beside the notebook have {readable_size(size)}, {readable_size(limit_bytes)} are "
            f"allowed (c.Distribute.modules_limit_bytes). The largest: {text}.",
            "Install them into the cluster's image, or move data out of them.",
        )
    return found


def imports_of(tree: ast.AST) -> set[str]:
    """Return the top-level names of all modules that this source imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


def imports_in(source: bytes) -> set[str]:
    try:
        return imports_of(ast.parse(source))
    except SyntaxError:
        # The import on the rank raises the error, with the position.
        return set()


def _files_of(name: str, folder: Path) -> Iterator[tuple[Path, str]]:
    spec = _spec(name)
    if spec is None:
        return
    if spec.submodule_search_locations is not None:
        for location in map(Path, spec.submodule_search_locations):
            if _beside(location, folder):
                for path in sorted(location.rglob("*.py")):
                    yield path, path.relative_to(location.parent).as_posix()
    elif spec.origin and _beside(Path(spec.origin), folder):
        if not spec.origin.endswith(".py"):
            raise ModulesNotSendable(
                f"The module {name} beside the notebook is compiled ({Path(spec.origin).name}): "
                "only Python source travels.",
                "Install it into the cluster's image.",
            )
        yield Path(spec.origin), Path(spec.origin).name


def _spec(name: str) -> ModuleSpec | None:
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return None
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded.__spec__
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        return None


def _beside(path: Path, folder: Path) -> bool:
    absolute = path.absolute()
    inside = absolute.is_relative_to(folder.absolute())
    return inside and not _INSTALLED & set(absolute.parts) and not _in_environment(absolute, folder)


def _in_environment(path: Path, folder: Path) -> bool:
    """Whether a path belongs to this Python's own environment, if that is under the folder."""
    prefix = Path(sys.prefix).absolute()
    return prefix.is_relative_to(folder.absolute()) and path.is_relative_to(prefix)
