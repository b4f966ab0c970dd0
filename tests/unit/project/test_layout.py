"""The rooms keep their direction and their size, read from the source itself: each file is parsed once."""

from __future__ import annotations

import ast
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
FILE_LINES, FUNCTION_LINES = 400, 40

LAYERS = [
    [
        "app",
        "parts",
        "listeners",
        "former_agents",
        "people",
        "idle_options",
        "request_options",
        "storage_options",
        "__main__",
    ],
    ["shift"],
    ["handlers", "job_watch", "stall_watch", "idle_watch", "server_places"],
    ["reconciler"],
    ["executor"],
    ["planner", "attention", "engine_work"],
    ["leasing"],
    ["foretelling", "shadowing", "usage_report"],
    ["rules", "accounts"],
    ["board"],
    ["orders", "looks", "keepers", "holds", "gpu_readings", "overview", "paces"],
    ["lifecycle", "deadlines", "views", "scheduler_view", "my_queue"],
    ["losses"],
    ["quarantine"],
    ["steps"],
    ["actions", "scenes"],
    [
        "root_cause",
        "duty",
        "artifacts",
        "old_jobs",
        "job_removal",
        "data_sets",
        "catalogue",
        "meetings",
        "last_places",
    ],
    ["notices", "bookings", "entitlements", "why", "storage"],
    ["scheduling", "store", "engines", "logs", "blobs"],
    ["states", "places"],
    ["models", "bell", "processes", "fresh_dns", "steady", "task_memory", "quick_import", "disk_room"],
    ["computing", "full_disk", "tls", "node_tokens", "database_url", "rates"],
]
"""Of the job service, from the top: a file imports from its own row and the rows below."""

BESIDE = {
    "launch": {"launch", "passwords", "processes", "settings", "quick_import", "task_memory"},
    "cluster": {"cluster", "configure", "database_url", "engines", "launch", "passwords", "simulate"},
    "simulate": {"simulate", "scheduling"},
    "configure": {
        "configure_swarm",
        "hub_requests",
        "passwords",
        "processes",
        "server_addresses",
        "settings",
    },
    "hub_requests": set(),
    "configure_swarm": {"engines", "fresh_dns"},
    "server_addresses": set(),
    "authenticator": {"login", "passwords"},
    "login": {"login", "passwords"},
    "settings": {"processes"},
    "database_url": set(),
    "passwords": set(),
}
"""What stands beside the job service, and all that it may import of minicluster_hub."""

PURE = [
    "states.py",
    "models.py",
    "scenes.py",
    "actions.py",
    "steps.py",
    "lifecycle.py",
    "losses.py",
    "meetings.py",
    "deadlines.py",
    "orders.py",
    "root_cause.py",
    "last_places.py",
    "why.py",
    "places.py",
    "views.py",
    "scheduler_view.py",
    "my_queue.py",
    "scheduling",
]
IMPURE = {"tornado", "sqlalchemy", "alembic", "time", "datetime", "asyncio", "socket", "subprocess", "psutil"}


@dataclass(frozen=True)
class Source:
    """A file of a room."""

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
        """The dotted name under which it is imported."""
        parts = self.path.relative_to(ROOMS[self.room].parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def imports(self) -> frozenset[str]:
        """The dotted names that it imports, at its top or inside a function."""
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
    """Fail with all that was found, not only with the first."""
    words = list(found)
    assert not words, "\n" + "\n".join(words)


def test_a_file_is_short_and_so_are_its_functions(sources: list[Source]) -> None:
    check(words for source in sources for words in _too_long(source))


def _too_long(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines >= FILE_LINES:
        yield f"{source} has {lines} lines; fewer than {FILE_LINES} are allowed"
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


def test_the_hub_takes_only_messages_from_the_notebook_package(sources: list[Source]) -> None:
    check(
        f"{source} imports {name}"
        for source in of_room(sources, "minicluster_hub")
        for name in source.imports
        if (name.split(".")[0] == "minicluster" and name.split(".")[1:2] != ["wire"])
        or name.split(".")[0] == "minicluster_spawner"
    )


def test_the_spawner_takes_only_engine_parts_from_the_hub(sources: list[Source]) -> None:
    allowed = {"engines", "processes", "quick_import", "models"}
    check(
        f"{source} imports from minicluster_hub.{part}"
        for source in of_room(sources, "minicluster_spawner")
        for part in source.hub_parts - allowed
    )


def test_imports_go_down_the_layers(sources: list[Source]) -> None:
    rows = {name: number for number, row in enumerate(LAYERS) for name in row}
    check(words for source in of_room(sources, "minicluster_hub") for words in _not_down(source, rows))


def _not_down(source: Source, rows: dict[str, int]) -> Iterator[str]:
    part = source.path.relative_to(ROOMS["minicluster_hub"]).parts[0].removesuffix(".py")
    if part == "__init__":
        allowed: set[str] = set()
    elif part in BESIDE:
        allowed = BESIDE[part]
    elif part in rows:
        allowed = {used for used in source.hub_parts if rows.get(used, -1) >= rows[part]}
    else:
        yield f"{part} has no place yet: put it into LAYERS or BESIDE"
        return
    for used in sorted(source.hub_parts - allowed):
        yield f"{source} imports {used}, which is above or beside"


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
