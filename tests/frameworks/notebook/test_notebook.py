"""Cells of other frameworks from a notebook: found by their imports, arrays come back, sessions keep them."""

import sys

import numpy as np
import pytest

from minicluster.display.failures import DistributedCellError
from minicluster.options import OptionWrong

pytestmark = pytest.mark.usefixtures("jax")

CELL = """%%distribute --nodes 2
import jax
jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "i"), "i")(jax.numpy.ones(1))
"""


def test_a_cell_of_jax_needs_no_option_and_returns_its_arrays(notebook):
    import jax

    notebook.run(CELL)
    assert isinstance(notebook.names["total"], jax.Array)
    assert notebook.names["total"].tolist() == [2.0]


def test_an_array_goes_there_and_back(notebook):
    import jax.numpy as jnp

    notebook.names["given"] = jnp.arange(4.0)
    notebook.run(
        "%%distribute --nodes 2\nimport jax\njax.distributed.initialize()\n"
        "ranks = jax.process_count()\ngiven = given.at[0].set(9.0)"
    )
    assert (notebook.names["ranks"], notebook.names["given"].tolist()) == (2, [9.0, 1.0, 2.0, 3.0])


def test_a_notebook_without_jax_gets_numpys_arrays_and_is_told(notebook, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jax", None)
    notebook.run(CELL)
    assert type(notebook.names["total"]) is np.ndarray
    assert "Arrays of JAX came back as NumPy's" in capsys.readouterr().out


def test_beside_torch_it_is_said_which_of_both_trains(notebook, capsys):
    body = "import jax, torch.distributed as dist\nthere = dist.is_initialized()"
    notebook.run(f"%%distribute --nodes 2\n{body}")
    assert notebook.names["there"] is True
    assert "The cell imports jax beside torch" in capsys.readouterr().out
    notebook.run(f"%%distribute --nodes 2 --framework jax\n{body}")
    assert notebook.names["there"] is False
    assert "beside" not in capsys.readouterr().out


def test_what_is_torchs_alone_is_refused_before_anything_starts(notebook):
    error = notebook.fails("%%distribute --nodes 2 --comm bf16\nimport jax", OptionWrong)
    assert str(error.message).startswith("--comm is about torch, but what trains in this cell is jax")
    error = notebook.fails("%%distribute --dry-run\nimport optax", OptionWrong)
    assert error.message.startswith("--dry-run is about torch")


def test_keras_has_the_back_end_of_the_notebook(notebook, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    notebook.run("%%distribute --nodes 2\nimport keras\nbackend = keras.backend.backend()")
    assert notebook.names["backend"] == "jax"


def test_a_session_keeps_jaxs_ranks_and_arrays(notebook):
    notebook.run("import minicluster as mc")
    notebook.run("%distribute up --nodes 2 --framework jax")
    try:
        notebook.run("%%distribute\nimport jax\njax.distributed.initialize()\nkept = jax.numpy.ones(3)")
        notebook.run("%%distribute --pull total\ntotal = float(kept.sum()) * jax.process_count()")
        assert notebook.names["total"] == 6.0
        with pytest.raises(Exception, match="no such thing"):
            notebook.run("%%distribute\nraise ValueError('no such thing')")
        notebook.run("%%distribute --pull again\nagain = mc.comm().allreduce(1)")
        assert notebook.names["again"] == 2
    finally:
        notebook.run("%distribute down")


def test_plain_python_is_a_framework_too(notebook):
    notebook.run("import minicluster as mc")
    notebook.run("%%distribute --nodes 2 --framework none\ntotal = mc.comm().allreduce(2)")
    assert notebook.names["total"] == 4


def test_an_error_of_jax_shows_the_cells_line(notebook):
    error = notebook.fails(
        "%%distribute --nodes 2\nimport jax\njax.numpy.ones(2) + jax.numpy.ones(3)", DistributedCellError
    )
    assert "line 3" in error.error.traceback and "TypeError" in error.message


def test_a_sweep_of_jax(notebook):
    notebook.run(
        "%%sweep --metric loss --minimize --trials 2 --nodes 2\n"
        "import jax, minicluster as mc\n"
        "jax.distributed.initialize()\n"
        "x = mc.suggest('x', -1.0, 1.0)\n"
        "mc.log(loss=jax.numpy.square(x))\n"
        "ranks = jax.process_count()\n"
    )
    sweep = notebook.names["sweep"]
    assert [row["state"] for row in sweep.rows()] == ["complete"] * 2
    assert sweep.best["ranks"] == 2
