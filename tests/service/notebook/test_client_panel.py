"""The panel in a real kernel: what is saved in the notebook."""

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from ... import messages

CELL = """%%distribute --nodes 2
import minicluster as mc
for step in mc.progress(range(3), label="step"):
    mc.log(step=step, loss=1 / (step + 1))
    print("rank", mc.rank(), "<b>step</b>", step, flush=True)
step"""


def executed(cluster, monkeypatch, *cells):
    monkeypatch.setenv("MINICLUSTER_URL", cluster.url)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "ada-token")
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    made = [nbformat.v4.new_code_cell(source) for source in cells]
    book = nbformat.v4.new_notebook(cells=made)
    client = NotebookClient(book, timeout=90, kernel_name="python3")
    try:
        client.execute()
    except CellExecutionError as error:
        return book, error
    return book, None


def test_a_picture_stays_and_no_widget(cluster, monkeypatch):
    book, error = executed(cluster, monkeypatch, "%load_ext minicluster", CELL, "print(step)")
    assert error is None
    outputs = book.cells[1].outputs
    shown = [output for output in outputs if output.output_type == "display_data"]
    (panel,) = [output for output in shown if output.data.get("text/html")]
    assert not any("application/vnd.jupyter.widget-view+json" in output.data for output in shown)
    assert set(panel.data) == {"text/html", "text/plain"}
    assert "data:image/svg+xml" in panel.data["text/html"]
    assert "&lt;b&gt;step&lt;/b&gt; 2" in panel.data["text/html"]
    assert messages.SUCCEEDED.format(ranks=2) in panel.data["text/plain"]
    (value,) = [output for output in outputs if output.output_type == "execute_result"]
    assert value.data["text/plain"] == "2"
    assert book.cells[2].outputs[0].text == "2\n"


@pytest.mark.parametrize("line", ["", " --plain"])
def test_an_error_stops_the_notebook(cluster, monkeypatch, line):
    book, error = executed(
        cluster,
        monkeypatch,
        "%load_ext minicluster",
        f"%%distribute{line} --nodes 1\n\n1 / 0",
        "print('after')",
    )
    assert error is not None
    (shown,) = [output for output in book.cells[1].outputs if output.output_type == "error"]
    assert shown.ename == "DistributedCellError"
    assert "line 3" in "\n".join(shown.traceback)
    assert "site-packages" not in "\n".join(shown.traceback)
    assert not book.cells[2].outputs
