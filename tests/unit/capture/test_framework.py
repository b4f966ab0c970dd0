"""Which framework trains in a cell, from what it imports and from Keras's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicluster.capture.framework import (
    FoundFramework,
    find_framework,
    imports_of_payload,
    note_for_session,
)
from minicluster.capture.notebook_folder import NotebookFolder
from minicluster.capture.payload import CellPayload
from minicluster.cell_run import job_spec
from minicluster.options import OptionWrong, parse_cell_line
from minicluster.runtime.rank.tracebacks import hint_for_rank
from minicluster.wire.training.framework import Framework

TORCH, JAX, TENSORFLOW = Framework.TORCH, Framework.JAX, Framework.TENSORFLOW


def found(*modules: str, chosen: str | None = None, **environ: str) -> FoundFramework:
    return find_framework(modules, {}, {"KERAS_HOME": "/nowhere", **environ}, chosen)


@pytest.mark.parametrize(
    ("modules", "framework"),
    [
        ("torch numpy", TORCH),
        ("jax", JAX),
        ("flax optax numpy", JAX),
        ("equinox", JAX),
        ("tensorflow", TENSORFLOW),
        ("lightning", TORCH),
        ("deepspeed", TORCH),
        ("transformers", TORCH),
        ("transformers jax", JAX),
        ("keras", TENSORFLOW),
        ("numpy pandas", None),
        ("", None),
    ],
)
def test_it_is_found_from_the_imports(modules: str, framework: Framework | None) -> None:
    assert found(*modules.split()).framework is framework
    assert not found(*modules.split()).note


@pytest.mark.parametrize(
    ("modules", "framework", "beside"),
    [
        ("jax torch", TORCH, JAX),
        ("tensorflow accelerate", TORCH, TENSORFLOW),
        ("tensorflow jax", JAX, TENSORFLOW),
    ],
)
def test_of_two_one_is_taken_and_said(modules: str, framework: Framework, beside: Framework) -> None:
    both = found(*modules.split())
    assert (both.framework, both.beside) == (framework, (beside,))
    assert both.note.endswith(f"--framework {beside}")
    chosen = found(*modules.split(), chosen=beside)
    assert (chosen.framework, chosen.note) == (beside, "")


@pytest.mark.parametrize("backend", ["jax", "tensorflow", "torch"])
def test_keras_trains_with_its_back_end_which_the_ranks_get(backend: str, tmp_path: Path) -> None:
    by_variable = found("keras", KERAS_BACKEND=backend)
    assert by_variable.framework is Framework(backend)
    assert by_variable.environ == {"KERAS_BACKEND": backend}
    (tmp_path / "keras.json").write_text(f'{{"backend": "{backend}"}}')
    by_file = found("keras", KERAS_HOME=str(tmp_path))
    assert (by_file.framework, by_file.environ) == (by_variable.framework, by_variable.environ)
    by_line = find_framework({"keras"}, {"KERAS_BACKEND": backend}, {"KERAS_BACKEND": "numpy"})
    assert (by_line.framework, by_line.environ) == (Framework(backend), {})


@pytest.mark.parametrize(
    ("module", "ranks", "can"),
    [
        ("tensorflow", TORCH, False),
        ("tensorflow", JAX, False),
        ("jax", Framework.NONE, False),
        ("jax", TORCH, True),
        ("jax", JAX, True),
        ("torch", JAX, True),
        ("numpy", JAX, True),
    ],
)
def test_a_session_says_what_cannot_find_its_ranks(module: str, ranks: Framework, can: bool) -> None:
    note = note_for_session(found(module), ranks)
    assert (note == "") is can
    assert can or f"ranks are made for {ranks}" in note


def test_keras_on_jax_may_read_its_data_by_tensorflow() -> None:
    assert found("keras", "tensorflow", KERAS_BACKEND="jax").framework is JAX


def test_a_back_end_without_ranks_is_no_framework() -> None:
    assert found("keras", KERAS_BACKEND="openvino") == FoundFramework()


def test_what_the_line_says_is_keras_back_end_too() -> None:
    assert found("keras", chosen="jax").environ == {"KERAS_BACKEND": "jax"}
    assert found("numpy", chosen="none") == FoundFramework(Framework.NONE)


def test_imports_in_modules_that_travel_count() -> None:
    payload = CellPayload("import helpers", "Cell In[1]", modules={"helpers.py": b"from jax import numpy"})
    assert imports_of_payload(payload) == {"helpers", "jax"}


def test_an_unknown_framework_is_refused_with_those_that_are_there() -> None:
    assert parse_cell_line("--framework jax").framework == "jax"
    with pytest.raises(OptionWrong, match="--framework: 'mxnet'") as caught:
        parse_cell_line("--framework mxnet")
    assert caught.value.hint.startswith("There are: torch, jax, tensorflow, none. MXNet was retired")


@pytest.mark.parametrize("option", ["--fault-tolerant", "--comm ddp", "--balance", "--dry-run"])
def test_what_torch_alone_does_is_refused_for_others(option: str) -> None:
    with pytest.raises(OptionWrong, match=f"{option.split()[0]} is about torch"):
        parse_cell_line(f"--framework jax {option}")
    assert parse_cell_line(f"--framework torch {option}").framework == "torch"


def test_the_job_says_it() -> None:
    assert job_spec(parse_cell_line("--framework none"), "a" * 64).framework is Framework.NONE
    assert job_spec(parse_cell_line(""), "a" * 64).framework is None


def test_a_rank_without_the_framework_says_which_image_has_it() -> None:
    missing = ModuleNotFoundError("No module named 'optax'", name="optax")
    hint = hint_for_rank(missing, NotebookFolder(), at_home=True)
    assert "--image minicluster-notebook-jax has it" in hint
    assert hint_for_rank(ModuleNotFoundError(name="other"), NotebookFolder(), at_home=True) == ""
