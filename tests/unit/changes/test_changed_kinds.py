"""Each kind of change is applied as if the cell ran in the notebook, or is reported."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any

import pytest

from .changed_kinds import TABLES, Kind
from .graphs import Pairs
from .two_sides import Notebook

KINDS = [
    pytest.param(kind, table, id=f"{table}: {name}")
    for table, kinds in TABLES.items()
    for name, kind in kinds.items()
]


def own(names: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in sorted(names.items())
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


@pytest.mark.parametrize(("kind", "table"), KINDS)
def test_a_kind_of_change(kind: Kind, table: str, tmp_path: Path) -> None:
    for module in (kind.needs, "" if table == "python" else table):
        pytest.importorskip(module or "sys")
    notebook, truth = Notebook(tmp_path), Notebook(tmp_path)
    for side in (notebook, truth):
        side.cell(kind.setup)
    pairs = Pairs()
    assert pairs.differences(own(truth.names), own(notebook.names)) == []
    push = [name for name in notebook.names if name[0] != "_" and re.search(rf"\b{name}\b", kind.cell)]
    result = notebook.distribute(kind.cell, " ".join(push))
    truth.cell(kind.cell if kind.instead is None else kind.instead)
    differences = pairs.differences(own(truth.names), own(notebook.names))
    assert (differences, bool(kind.says) or result.summary()) == ([], bool(kind.says) or "")
    assert kind.says in result.summary()
