"""What is sent with a cell: its names, and the source of modules beside the notebook."""

import sys
from pathlib import Path

import pytest

from minicluster.capture.capture import CaptureLimits, NotebookContext, UnknownNames, capture
from minicluster.capture.cell import CellSource
from minicluster.capture.modules import ModulesNotSendable, collect
from minicluster.pickling.pickling import loads

LIMITS = CaptureLimits(10**6, 10**6, 10**5)


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Modules beside a notebook, on the import path as in a kernel; they are removed from sys.modules."""
    (tmp_path / "nets_of_mine").mkdir()
    (tmp_path / "nets_of_mine" / "__init__.py").write_text(
        "from .layers import wide\nimport helper_of_mine\n"
    )
    (tmp_path / "nets_of_mine" / "layers.py").write_text("wide = 4\n")
    (tmp_path / "helper_of_mine.py").write_text("import json\ndef act(x): return x + 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.endswith("_of_mine") or "_of_mine." in name]:
        del sys.modules[name]


def captured(source, namespace, folder=None, **more):
    around = NotebookContext(namespace, folder or Path("/nowhere"), lambda name: name == "In")
    return capture(CellSource.parse(source, "Cell In[1]"), around, LIMITS, **more).payload


def names_in(payload):
    return set(loads(payload.names, {}))


def test_only_names_that_the_cell_reads_travel():
    namespace = {"a": 1, "b": 2, "c": 3, "In": ["x"]}
    payload = captured("a + c + In + unknown\nc = 2", namespace)
    assert names_in(payload) == {"a", "c"}
    assert payload.versions["python"].startswith(f"{sys.version_info.major}.")


def test_a_cell_that_needs_nothing_carries_nothing():
    assert captured("x = 1", {"a": 1}).names == b""


def test_push_chooses_and_names_what_is_missing():
    namespace = {"alpha": 1, "beta": 2}
    assert names_in(captured("alpha", namespace, push=("beta",))) == {"beta"}
    with pytest.raises(UnknownNames) as caught:
        captured("alpha", namespace, push=("alhpa",))
    assert "'alhpa'" in caught.value.message
    assert "alpha" in caught.value.hint


def test_modules_beside_the_notebook_travel_as_source_with_what_they_import(beside):
    payload = captured("import nets_of_mine, os, numpy", {}, beside)
    assert set(payload.modules) == {"nets_of_mine/__init__.py", "nets_of_mine/layers.py", "helper_of_mine.py"}


def test_a_function_of_such_a_module_brings_it_along(beside):
    import helper_of_mine  # type: ignore[import-not-found]

    assert set(captured("act(1)", {"act": helper_of_mine.act}, beside).modules) == {"helper_of_mine.py"}


def test_an_import_inside_a_function_of_the_notebook_counts(beside):
    namespace = {}
    exec("def work():\n    import helper_of_mine\n    return helper_of_mine.act(1)", namespace)
    assert set(captured("work()", namespace, beside).modules) == {"helper_of_mine.py"}


def test_source_counts_as_it_is_on_the_disk(beside):
    import helper_of_mine  # type: ignore[import-not-found]

    (beside / "helper_of_mine.py").write_text("def act(x): return x + 2\n")
    payload = captured("h.act(1)", {"h": helper_of_mine}, beside)
    assert b"x + 2" in payload.modules["helper_of_mine.py"]


def test_too_much_source_is_refused_with_the_largest_file(beside):
    (beside / "helper_of_mine.py").write_text("# " + "x" * 200_000)
    with pytest.raises(ModulesNotSendable) as caught:
        captured("import helper_of_mine", {}, beside)
    assert "helper_of_mine.py (200 KB)" in caught.value.message
    assert "modules_limit_bytes" in caught.value.message


def test_compiled_modules_are_refused(beside):
    suffix = __import__("importlib.machinery").machinery.EXTENSION_SUFFIXES[0]
    (beside / f"fast_of_mine{suffix}").write_bytes(b"\x7fELF")
    with pytest.raises(ModulesNotSendable, match="is compiled"):
        captured("import fast_of_mine", {}, beside)


def test_installed_modules_stay_where_they_are():
    assert collect(["pytest", "json", "no_such_module"], Path("/"), 10**6) == {}
