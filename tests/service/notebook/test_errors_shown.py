"""How the notebook shows a failed cell: with the user's own lines, from any cell."""

import pytest

from minicluster.capture.cell import CellSyntaxError
from minicluster.display.failures import DistributedCellError


def test_functions_of_other_cells_show_their_lines(notebook):
    notebook.run("def broken(x):\n    return x / 0  # here")
    plain = notebook.shell.displayhook.prompt_count
    notebook.run("%%distribute --nodes 1\ndef through(x):\n    return broken(x)  # by this")
    distributed = notebook.shell.displayhook.prompt_count
    error = notebook.fails("%%distribute --nodes 1\nthrough(3)", DistributedCellError)
    traceback = error.job.error.traceback
    assert f'File "Cell In[{plain}]", line 2, in broken\n    return x / 0  # here\n' in traceback
    assert (
        f'File "Cell In[{distributed}]", line 3, in through\n    return broken(x)  # by this\n' in traceback
    )
    assert "ipython-input" not in traceback


def test_what_ranks_print_of_a_traceback_has_the_lines_too(notebook, capsys):
    notebook.run("def broken(x):\n    return x / 0  # here")
    notebook.run(
        "%%distribute --nodes 1\nimport traceback\ntry:\n    broken(1)\nexcept ZeroDivisionError:\n"
        "    traceback.print_exc()"
    )
    assert "return x / 0  # here" in capsys.readouterr().out


@pytest.mark.parametrize("mistake", ["y = (1 +", "return 3"])
def test_a_mistyped_cell_shows_its_line_and_no_frames(notebook, mistake):
    error = notebook.fails(f"%%distribute --nodes 1\nx = 1\n{mistake}", CellSyntaxError)
    number = notebook.shell.displayhook.prompt_count
    where, line, _, message = error._render_traceback_()
    assert where == f"  Cell In[{number}], line 3"
    assert line.strip() == mistake
    assert message.startswith("SyntaxError: ")
