"""Displays of ranks in a real kernel: once, in the cell's picture; a figure as value in Out."""

import json

import pytest

from .test_client_panel import executed

VALUE = """%%distribute --nodes 2
import matplotlib.pyplot as plt
figure, axes = plt.subplots()
axes.plot([1, 2, 3])
figure"""
SHOWN = """%%distribute --nodes 2 {line}
import os
import matplotlib.pyplot as plt
class Table:
    def _repr_html_(self): return "<table><tr><td>cell</td></tr></table>"
    def __repr__(self): return "a table"
print("\\x1b[31mred\\x1b[0m")
display(Table())
plt.plot([1, int(os.environ["RANK"])])
plt.show()
print("end")"""


def pictures(cell):
    """Count the images in a cell's outputs, including those in HTML."""
    return sum(
        ("image/png" in output.get("data", {})) + json.dumps(output).count("data:image/png;base64,")
        for output in cell.outputs
    )


def test_a_figure_as_value_is_there_once_like_in_a_plain_notebook(cluster, monkeypatch):
    book, error = executed(
        cluster, monkeypatch, "%load_ext minicluster", VALUE.replace("nodes 2", "nodes 1"), "print('next')"
    )
    assert error is None
    (value,) = [output for output in book.cells[1].outputs if output.output_type == "execute_result"]
    assert "image/png" in value.data
    assert pictures(book.cells[1]) == 1
    assert [output.output_type for output in book.cells[2].outputs] == ["stream"]


def test_what_each_rank_displayed_is_in_its_part_of_the_picture(cluster, monkeypatch):
    book, error = executed(cluster, monkeypatch, "%load_ext minicluster", SHOWN.format(line=""))
    assert error is None
    assert pictures(book.cells[1]) == 2
    shown = "".join(output.get("data", {}).get("text/html", "") for output in book.cells[1].outputs)
    for part in shown.split("<details")[1:]:
        assert part.count("data:image/png;base64,") == 1
        assert part.index("red</span>") < part.index("<td>cell</td>") < part.index("<img") < part.index("end")


@pytest.mark.parametrize("again", ["attach", "logs"])
def test_text_stands_for_it_where_there_is_no_panel_also_later(cluster, monkeypatch, again):
    cells = ("%load_ext minicluster", SHOWN.format(line="--plain"))
    later = f"""%distribute {again} {{__import__('re').search(r'job (\\d+)', _told.stdout)[1]}}"""
    book, error = executed(
        cluster, monkeypatch, cells[0], "%%capture _told\n" + cells[1].strip(), "_told.show()", later
    )
    assert error is None
    plain = "".join(output.get("text", "") for output in book.cells[2].outputs)
    assert "\x1b[31mred\x1b[0m\na table\n<Figure size 640x480 with 1 Axes>\nend" in plain
    if again == "attach":
        assert pictures(book.cells[3]) == 2
    else:
        text = "".join(output.get("text", "") for output in book.cells[3].outputs)
        assert "a table\n<Figure size 640x480 with 1 Axes>\nend" in text and "_mc-" not in text
