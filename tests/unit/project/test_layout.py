"""Packages keep the direction of imports and their size limits, checked by parsing each file once."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3]
ROOMS = {
    "minicluster_hub": TREE / "hub_ext" / "minicluster_hub",
    "minicluster_spawner": TREE / "spawner" / "minicluster_spawner",
    "minicluster": TREE / "kernels" / "minicluster",
}
MODULES, FUNCTION_LINES = 15, 40
"""Limit of modules in a folder; limit of lines of a function."""

LAYERS = [
    {"app", "wiring", "options", "__main__"},
    {"http_server", "former_agents", "service_lifecycle"},
    {"api", "pages", "leader_proxy"},
    {"web"},
    {"metrics", "servers", "serving", "sessions", "sweeps"},
    {"control"},
    {"datasets", "policy", "runs"},
    {"images", "machines", "notices", "simulator", "storage", "usage"},
    {"engines", "scheduling", "store"},
    {"jobs", "listeners"},
    {"diagnosis", "support"},
]
"""The job service's folders from the top: each imports only from lower rows."""

BESIDE = {
    "launch": {"engines", "hub", "login", "settings", "support"},
    "cluster": {"configure", "engines", "launch", "login", "support"},
    "configure": {"hub", "login", "settings", "support"},
    "hub": {"engines"},
    "login": set(),
    "settings": {"support"},
}
"""Folders beside the job service, and what each may import from minicluster_hub."""

OF_ALL = {"hub", "settings"}
"""What the top row may import from those."""

PURE = [
    "jobs",
    "diagnosis",
    "scheduling",
    "control/scheduler_input.py",
    "control/operations.py",
    "usage/queue_view.py",
]
IMPURE = {"tornado", "sqlalchemy", "alembic", "time", "datetime", "asyncio", "socket", "subprocess", "psutil"}


@dataclass(frozen=True)
class Source:
    """A source file of a package."""

    path: Path
    text: str
    parsed: ast.Module

    def __str__(self) -> str:
        return shown(self.path)

    @property
    def room(self) -> str:
        return next(name for name, room in ROOMS.items() if self.path.is_relative_to(room))

    @cached_property
    def module(self) -> str:
        """The module's dotted name."""
        parts = self.path.relative_to(ROOMS[self.room].parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def imports(self) -> frozenset[str]:
        """The dotted names of its imports, at the top or in functions."""
        package = self.module.split(".")
        if self.path.name != "__init__.py":
            package = package[:-1]
        found: set[str] = set()
        for node in ast.walk(self.parsed):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        return frozenset(found)

    @cached_property
    def hub_parts(self) -> set[str]:
        """The parts of minicluster_hub (its files and folders) that it imports from."""
        names = (name.split(".") for name in self.imports)
        return {name[1] for name in names if name[0] == "minicluster_hub" and len(name) > 1}


def shown(path: Path) -> str:
    return str(path.relative_to(TREE))


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    paths = sorted(path for room in ROOMS.values() for path in room.rglob("*.py"))
    texts = {path: path.read_text() for path in paths}
    return [Source(path, text, ast.parse(text)) for path, text in texts.items()]


def of_room(sources: list[Source], room: str) -> list[Source]:
    found = [source for source in sources if source.room == room]
    assert found, f"{room} has no files"
    return found


def check(found: Iterator[str]) -> None:
    """Fail with all findings, not only the first."""
    problems = list(found)
    assert not problems, "\n" + "\n".join(problems)


def test_a_folder_holds_few_modules(sources: list[Source]) -> None:
    folders = Counter(source.path.parent for source in sources if source.path.stem != "__init__")
    check(
        f"{shown(folder)} holds {modules} modules; {MODULES} is the limit: one concern per folder"
        for folder, modules in folders.items()
        if modules > MODULES and folder.name != "versions"
    )


def test_a_function_is_short(sources: list[Source]) -> None:
    check(problem for source in sources for problem in _too_long(source))


def _too_long(source: Source) -> Iterator[str]:
    for node in ast.walk(source.parsed):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = [part for part in node.body if not _is_docstring(part)]
            lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            if lines > FUNCTION_LINES:
                yield f"{source}: {node.name} has {lines} lines; {FUNCTION_LINES} is the limit"


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def test_what_runs_in_notebooks_imports_neither_hub_nor_spawner(sources: list[Source]) -> None:
    others = {"minicluster_hub", "minicluster_spawner", "jupyterhub"}
    check(
        f"{source} imports {name}"
        for source in of_room(sources, "minicluster")
        for name in source.imports
        if name.partition(".")[0] in others
    )


def test_the_hub_takes_only_messages_and_readings_from_the_notebook_package(sources: list[Source]) -> None:
    check(
        f"{source} imports {name}"
        for source in of_room(sources, "minicluster_hub")
        for name in source.imports
        if (name.split(".")[0] == "minicluster" and name.split(".")[1:2] not in (["wire"], ["machine"]))
        or name.split(".")[0] == "minicluster_spawner"
    )


def test_the_spawner_takes_only_engine_parts_from_the_hub(sources: list[Source]) -> None:
    allowed = {"engines", "support", "hub", "jobs"}
    check(
        f"{source} imports from minicluster_hub.{part}"
        for source in of_room(sources, "minicluster_spawner")
        for part in source.hub_parts - allowed
    )


def test_imports_go_down_the_layers(sources: list[Source]) -> None:
    check(problem for source in of_room(sources, "minicluster_hub") for problem in _not_down(source))


def _not_down(source: Source) -> Iterator[str]:
    part = source.path.relative_to(ROOMS["minicluster_hub"]).parts[0].removesuffix(".py")
    row = next((number for number, rooms in enumerate(LAYERS) if part in rooms), None)
    if part == "__init__":
        allowed: set[str] = set()
    elif part in BESIDE:
        allowed = BESIDE[part]
    elif row is not None:
        allowed = set().union(*LAYERS[row + 1 :], LAYERS[row] | OF_ALL if row == 0 else ())
    else:
        yield f"{part} has no place yet: put it into LAYERS or BESIDE"
        return
    for used in sorted(source.hub_parts - allowed - {part}):
        yield f"{source} imports {used}, which is above or beside"


def test_one_module_of_the_service_asks_the_simulator(sources: list[Source]) -> None:
    within = [
        source for source in of_room(sources, "minicluster_hub") if "simulator" not in source.path.parts
    ]
    asking = {shown(source.path) for source in within if "simulator" in source.hub_parts}
    assert asking == {"hub_ext/minicluster_hub/policy/simulations.py"}


def test_pure_parts_know_no_clock_no_network_no_database(sources: list[Source]) -> None:
    check(
        f"{source} imports {name}"
        for pure in PURE
        for source in _of_part(sources, ROOMS["minicluster_hub"] / pure)
        for name in source.imports
        if name.partition(".")[0] in IMPURE
    )


def _of_part(sources: list[Source], start: Path) -> list[Source]:
    found = [source for source in sources if source.path == start or start in source.path.parents]
    assert found, f"{shown(start)} is not there"
    return found


def test_rooms_hold_one_package_and_nothing_else() -> None:
    for package, folder in ROOMS.items():
        beside = {path.name for path in folder.parent.iterdir()} - {package, "__pycache__"}
        assert not beside, f"{shown(folder.parent)} holds more than its package: {beside}"
        assert (folder / "py.typed").is_file()
    assert not (TREE / "conftest.py").exists()
