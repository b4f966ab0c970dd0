"""The rooms keep their direction and their size, read from the source itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
ROOMS = {
    "minicluster_hub": TREE / "hub_ext" / "minicluster_hub",
    "minicluster_spawner": TREE / "spawner" / "minicluster_spawner",
    "minicluster": TREE / "kernels" / "minicluster",
}
FILES = sorted(path for room in ROOMS.values() for path in room.rglob("*.py"))

LAYERS = [
    ["app", "parts", "people", "idle_options", "__main__"],
    ["shift"],
    ["handlers", "job_watch", "stall_watch", "idle_watch", "server_places"],
    ["reconciler"],
    ["planner", "attention", "standby", "engine_work"],
    ["foretelling", "shadowing", "usage_report"],
    ["rules", "accounts"],
    ["board"],
    ["orders", "looks", "why", "keepers", "holds", "gpu_readings", "paces"],
    ["places"],
    ["lifecycle", "deadlines", "views", "scheduler_view", "my_queue"],
    ["losses"],
    ["actions", "scenes"],
    ["root_cause", "duty", "artifacts", "old_jobs", "data_sets", "catalogue", "meetings"],
    ["notices", "bookings", "entitlements"],
    ["scheduling", "store", "engines", "logs", "blobs"],
    ["states"],
    ["models", "bell", "processes", "fresh_dns", "steady", "full_disk", "task_memory", "quick_import"],
]
"""Of the job service, from the top: a file imports from its own row and the rows below."""

BESIDE = {
    "launch": {"launch", "passwords", "processes", "settings", "quick_import", "task_memory"},
    "cluster": {"cluster", "configure", "engines", "launch", "passwords", "simulate"},
    "simulate": {"simulate", "scheduling"},
    "configure": {"configure_swarm", "passwords", "processes", "settings"},
    "configure_swarm": {"fresh_dns"},
    "authenticator": {"passwords", "login_delay"},
    "settings": {"processes"},
    "passwords": set(),
    "login_delay": set(),
}
"""What stands beside the job service, and all that it may import of minicluster_hub."""

PURE = [
    "states.py",
    "models.py",
    "scenes.py",
    "actions.py",
    "lifecycle.py",
    "losses.py",
    "meetings.py",
    "deadlines.py",
    "orders.py",
    "root_cause.py",
    "why.py",
    "places.py",
    "views.py",
    "scheduler_view.py",
    "my_queue.py",
    "scheduling",
]
IMPURE = {"tornado", "sqlalchemy", "alembic", "time", "datetime", "asyncio", "socket", "subprocess", "psutil"}


def module_name(path: Path) -> str:
    """Return the dotted name under which a file is imported."""
    room = next(room for room in ROOMS.values() if path.is_relative_to(room))
    parts = path.relative_to(room.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Return the dotted names that a file imports, at its top or inside a function."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def hub_parts(path: Path) -> set[str]:
    """Return the parts of minicluster_hub (its files and folders) that a file imports from."""
    names = (name.split(".") for name in imports(path))
    return {name[1] for name in names if name[0] == "minicluster_hub" and len(name) > 1}


def shown(path: Path) -> str:
    return str(path.relative_to(TREE))


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_file_is_short_and_so_are_its_functions(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") < 300
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = [part for part in node.body if not _is_docstring(part)]
            lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert lines <= 40, f"{node.name} has {lines} lines; 40 is the limit"


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@pytest.mark.parametrize("path", sorted(ROOMS["minicluster"].rglob("*.py")), ids=shown)
def test_what_runs_in_notebooks_imports_neither_hub_nor_spawner(path: Path) -> None:
    roots = {name.partition(".")[0] for name in imports(path)}
    assert not roots & {"minicluster_hub", "minicluster_spawner", "jupyterhub"}


@pytest.mark.parametrize("path", sorted(ROOMS["minicluster_hub"].rglob("*.py")), ids=shown)
def test_the_hub_takes_only_messages_from_the_notebook_package(path: Path) -> None:
    ours = {name for name in imports(path) if name.split(".")[0] == "minicluster"}
    assert all(name == "minicluster.wire" or name.startswith("minicluster.wire.") for name in ours), ours
    assert not {name for name in imports(path) if name.split(".")[0] == "minicluster_spawner"}


@pytest.mark.parametrize("path", sorted(ROOMS["minicluster_spawner"].rglob("*.py")), ids=shown)
def test_the_spawner_takes_only_engine_parts_from_the_hub(path: Path) -> None:
    assert hub_parts(path) <= {"engines", "processes", "quick_import", "models"}


@pytest.mark.parametrize("path", sorted(ROOMS["minicluster_hub"].rglob("*.py")), ids=shown)
def test_imports_go_down_the_layers(path: Path) -> None:
    part = path.relative_to(ROOMS["minicluster_hub"]).parts[0].removesuffix(".py")
    if part == "__init__":
        assert not hub_parts(path)
    elif part in BESIDE:
        assert hub_parts(path) <= BESIDE[part]
    else:
        rows = {name: number for number, row in enumerate(LAYERS) for name in row}
        assert part in rows, f"{part} has no place yet: put it into LAYERS or BESIDE"
        above = {used for used in hub_parts(path) if rows.get(used, -1) < rows[part]}
        assert not above, f"{part} imports from above or beside: {', '.join(sorted(above))}"


@pytest.mark.parametrize("name", PURE)
def test_pure_parts_know_no_clock_no_network_no_database(name: str) -> None:
    start = ROOMS["minicluster_hub"] / name
    for path in [start] if start.is_file() else sorted(start.rglob("*.py")):
        used = {module.partition(".")[0] for module in imports(path)} & IMPURE
        assert not used, f"{shown(path)} imports {', '.join(sorted(used))}"


def test_rooms_hold_one_package_and_nothing_else() -> None:
    for package, folder in ROOMS.items():
        beside = {path.name for path in folder.parent.iterdir()} - {package, "__pycache__"}
        assert not beside, f"{shown(folder.parent)} holds more than its package: {beside}"
        assert (folder / "py.typed").is_file()
    assert not (TREE / "conftest.py").exists()
