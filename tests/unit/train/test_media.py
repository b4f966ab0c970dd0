"""Pictures, histograms and tables that mc.log takes."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pictures

import minicluster as mc
from minicluster.train.metrics import media
from minicluster.train.metrics.media import NotShowable
from minicluster.wire import HISTOGRAM, TABLE, Record

from .conftest import Read


def content(record: Record) -> bytes:
    assert record.media is not None
    return base64.b64decode(record.media.content)


def picture_of(value: Any, read: Read) -> np.ndarray[Any, Any]:
    mc.log(picture=mc.Image(value))
    (record,) = read()
    assert record.media is not None
    assert record.media.mime == "image/png"
    return np.asarray(Pictures.open(io.BytesIO(content(record))))


def test_a_histogram_counts_its_finite_values(records: Read) -> None:
    mc.log({"layer/weight": mc.Histogram(torch.tensor([[0.0, 1.0], [1.0, float("nan")]]), bins=2)}, step=7)
    (record,) = records()
    assert (record.kind, record.step, record.rank) == ("media", 7.0, 0)
    assert record.media is not None
    assert (record.media.name, record.media.mime) == ("layer/weight", HISTOGRAM)
    assert json.loads(content(record)) == {"counts": [1, 2], "edges": [0.0, 0.5, 1.0], "not_finite": 1}


@pytest.mark.parametrize("values", [[], [float("nan")], np.zeros((2, 2), bool)])
def test_a_histogram_of_nothing_or_of_equal_values_is_one(records: Read, values: Any) -> None:
    mc.log(it=mc.Histogram(values))
    assert sum(json.loads(content(records()[0]))["counts"]) == np.isfinite(np.asarray(values)).sum()


def test_a_picture_comes_back_as_it_was(records: Read) -> None:
    pixels = np.random.default_rng(7).integers(0, 255, (20, 30, 3), np.uint8)
    assert (picture_of(pixels, records) == pixels).all()
    assert (picture_of(torch.from_numpy(pixels).permute(2, 0, 1), records) == pixels).all()
    assert (picture_of(pixels[:, :, 0] / np.float32(255), records) == pixels[:, :, 0]).all()
    assert (picture_of(Pictures.fromarray(pixels), records) == pixels).all()
    file = io.BytesIO()
    Pictures.fromarray(pixels).save(file, "png")
    assert (picture_of(file.getvalue(), records) == pixels).all()


def test_a_large_picture_is_made_smaller(records: Read) -> None:
    pixels = np.random.default_rng(7).integers(0, 255, (1000, 1200, 3), np.uint8)
    assert picture_of(pixels, records).shape == (250, 300, 3)


def test_a_figure_is_drawn(records: Read) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    figure = figures.Figure()
    figure.subplots().plot([1, 2])
    assert picture_of(figure, records).shape[2] == 4


NO_PICTURES = [
    np.zeros((2, 3, 4, 5)),
    np.zeros((5, 4, 2)),
    np.zeros((0, 3)),
    "cat.png",
    object(),
    b"GIF89a",
    [[1], [2, 3]],
]


@pytest.mark.parametrize("value", NO_PICTURES, ids=lambda value: type(value).__name__)
def test_what_is_no_picture_is_refused(records: Read, value: Any) -> None:
    with pytest.raises(NotShowable, match=r"mc\.Image\(\) takes"):
        mc.log(picture=mc.Image(value))


class Frame:
    """The part of a pandas DataFrame that is used: pandas is not installed for these tests."""

    columns = ("label", "share")

    def itertuples(self, index: bool) -> Any:
        return iter([("cat", np.float64(0.5)), ("dog", np.float64("nan"))])

    def __len__(self) -> int:
        return 2


NAN = float("nan")
TABLES = [
    lambda: mc.Table([["cat", 0.5], ["dog", NAN]], columns=["label", "share"]),
    lambda: mc.Table([{"label": "cat", "share": 0.5}, {"label": "dog", "share": torch.tensor(NAN)}]),
    lambda: mc.Table({"label": ["cat", "dog"], "share": np.array([0.5, NAN])}),
    lambda: mc.Table(Frame()),
]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_names_and_rows(records: Read, table: Any) -> None:
    mc.log(errors=table())
    (record,) = records()
    assert record.media is not None
    assert record.media.mime == TABLE
    rows = [["cat", 0.5], ["dog", "nan"]]
    assert json.loads(content(record)) == {"columns": ["label", "share"], "rows": rows, "total": 2}


def test_a_long_table_is_cut(records: Read) -> None:
    mc.log(errors=mc.Table(np.arange(4000).reshape(2000, 2)))
    table = json.loads(content(records()[0]))
    assert (len(table["rows"]), table["total"], table["columns"]) == (1000, 2000, ["0", "1"])
    mc.log(errors=mc.Table([["x" * 10_000] * 10] * 1000))
    (record,) = records()
    assert len(content(record)) <= media.CONTENT_BYTES
    assert json.loads(content(record))["total"] == 1000


@pytest.mark.parametrize("value", [5, [1, 2], None])
def test_what_is_no_table_is_refused(records: Read, value: Any) -> None:
    with pytest.raises(NotShowable, match=r"mc\.Table\(\) takes"):
        mc.log(it=mc.Table(value))


def test_numbers_and_pictures_go_together(records: Read) -> None:
    mc.log({"loss": 0.5, "epoch/picture": mc.Image(np.zeros((2, 2)))}, step=40, epoch=2)
    numbers, picture = records()
    assert (numbers.step, numbers.values) == (40.0, {"loss": 0.5, "epoch": 2.0})
    assert (picture.step, picture.kind) == (2.0, "media")


def test_what_is_over_a_ranks_limit_is_left_out_and_said_once(
    records: Read, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(media, "RANK_BYTES", 100)
    monkeypatch.setattr(media, "send", media._Sender().send)
    for _ in range(4):
        mc.log(picture=mc.Image(np.zeros((2, 2))), loss=0.5)
    kinds = [record.kind for record in records()]
    assert (kinds.count("media"), kinds.count("log")) == (1, 4)
    assert capsys.readouterr().err.count("further ones are left out") == 1
