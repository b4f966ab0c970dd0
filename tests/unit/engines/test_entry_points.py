"""Engines by name: Minicluster's, those of another installed package, a class path, unknown names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from minicluster_hub.engines.base import Engine
from minicluster_hub.engines.entry_points import EngineNotFound, engine_class
from minicluster_hub.engines.local.engine import LocalEngine

PATH = "minicluster_hub.engines.local.engine.LocalEngine"
MODULE = """from minicluster_hub.engines.local.engine import LocalEngine
class OtherEngine(LocalEngine): pass
"""


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with an engine, a broken engine, and an object that is no engine."""
    (tmp_path / "other_engines.py").write_text(MODULE)
    information = tmp_path / "other_engines-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: other-engines\nVersion: 1\n")
    (information / "entry_points.txt").write_text(
        "[minicluster.engines]\n"
        "other = other_engines:OtherEngine\n"
        "broken = no_such_module:Engine\n"
        "number = os:getpid\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "other_engines", None)
    monkeypatch.delitem(sys.modules, "other_engines")


@pytest.mark.parametrize("name", ["local", PATH, PATH.replace(".Local", ":Local")])
def test_an_engine_is_found_by_its_name_or_its_path(name: str) -> None:
    assert engine_class(name) is LocalEngine


def test_the_engine_of_another_package_is_found_by_its_name(other_package: None) -> None:
    assert engine_class("other").__name__ == "OtherEngine"


def test_an_unknown_name_lists_those_that_there_are(other_package: None) -> None:
    listed = "broken, kubernetes, local, number, other, slurm, swarm"
    with pytest.raises(EngineNotFound, match=f"'pbs'; there are: {listed}"):
        engine_class("pbs")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "'broken' cannot be imported: No module named 'no_such_module'"),
        ("no_such_module.Engine", "cannot be imported"),
        ("minicluster_hub.engines.local.engine.NoEngine", "cannot be imported"),
        ("number", "'number' is no engine"),
        ("pathlib.Path", "is no engine"),
    ],
)
def test_what_is_no_engine_is_told(other_package: None, name: str, why: str) -> None:
    with pytest.raises(EngineNotFound, match=why):
        engine_class(name)


def test_an_engine_that_lacks_a_method_cannot_be_made() -> None:
    class Half(Engine):
        async def open(self) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Half()
