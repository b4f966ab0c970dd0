"""A script is read as Python reads it."""

from minicluster.capture.cell import CellSource
from minicluster.scripts import _text, pack


def test_an_editors_byte_order_mark_is_no_part_of_a_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_bytes(b"\xef\xbb\xbfprint(1)\n")
    cell = CellSource.parse(_text("train.py"), "train.py")
    assert pack(cell, (), 1000).modules == {"train.py": b"print(1)\n"}
