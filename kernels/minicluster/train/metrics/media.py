"""mc.Histogram, mc.Image and mc.Table: what mc.log takes besides numbers."""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from itertools import islice
from typing import TYPE_CHECKING, Any

from minicluster.errors import MiniclusterError
from minicluster.train.metrics import sending
from minicluster.wire import HISTOGRAM, MEDIA_CHARS, TABLE, Media, Record

if TYPE_CHECKING:
    import numpy as np

CONTENT_BYTES = MEDIA_CHARS // 4 * 3 - 3
RANK_BYTES = 64 << 20
"""What a rank sends in one attempt; further media are left out."""
_MOST_BINS = 512
_MOST_ROWS = 1000
_MOST_COLUMNS = 100
_CELL_CHARS = 500
_MOST_PIXELS = 1 << 24


class NotShowable(MiniclusterError):
    """A picture, histogram or table cannot be made of a value."""


class Logged:
    """Base of what mc.log takes besides numbers."""

    def content(self) -> tuple[str, bytes]:
        """Return the MIME type and the content, of at most CONTENT_BYTES. Raises NotShowable."""
        raise NotImplementedError


class Histogram(Logged):
    """How often values occur: `mc.log(weights=mc.Histogram(layer.weight), step=step)`.

    values: an array or a tensor of any shape. bins: at most 512.
    """

    def __init__(self, values: Any, bins: int = 64) -> None:
        if not 1 <= bins <= _MOST_BINS:
            raise NotShowable(f"mc.Histogram(bins={bins}) has 1 to {_MOST_BINS} bins.", "")
        self._values = values
        self._bins = bins

    def content(self) -> tuple[str, bytes]:
        import numpy as np

        values = _array(self._values, "mc.Histogram()").astype(np.float64).ravel()
        finite = values[np.isfinite(values)]
        counts, edges = np.histogram(finite, self._bins)
        data = {
            "counts": counts.tolist(),
            "edges": edges.tolist(),
            "not_finite": int(values.size - finite.size),
        }
        return HISTOGRAM, _json(data)


class Image(Logged):
    """A picture: `mc.log(samples=mc.Image(batch[0]), step=step)`.

    picture: an array or tensor (height, width), (height, width, 1, 3 or 4) or, as in torch, (channels,
    height, width), of bytes or of numbers from 0 to 1; a PIL image; a matplotlib figure; or the bytes of a
    PNG or JPEG file. One of more than 700 KB is made smaller, by half each time.
    """

    def __init__(self, picture: Any) -> None:
        self._picture = picture

    def content(self) -> tuple[str, bytes]:
        picture = self._picture
        if isinstance(picture, bytes):
            return _checked_file(picture)
        if callable(getattr(picture, "savefig", None)):
            return "image/png", _drawn(picture)
        if callable(getattr(picture, "convert", None)):  # PIL: palettes and the like have no plain array.
            picture = picture if picture.mode in ("L", "RGB", "RGBA") else picture.convert("RGBA")
        pixels = _pixels(_array(picture, "mc.Image()"))
        while len(png := _png(pixels)) > CONTENT_BYTES:
            pixels = pixels[::2, ::2]
        return "image/png", png


class Table(Logged):
    """A table: `mc.log(errors=mc.Table(frame), step=step)`.

    rows: a pandas DataFrame, a list of dicts, a list of rows, or a dict of columns. columns: their names, if
    the rows are lists. The first 1,000 rows and 100 columns are kept.
    """

    def __init__(self, rows: Any, columns: Sequence[Any] | None = None) -> None:
        self._rows = rows
        self._columns = columns

    def content(self) -> tuple[str, bytes]:
        columns, rows, total = _table(self._rows, self._columns)
        while len(data := _json({"columns": columns, "rows": rows, "total": total})) > CONTENT_BYTES:
            rows = rows[: len(rows) // 2]
        return TABLE, data


class _Sender:
    """Counts what this rank has sent."""

    def __init__(self) -> None:
        self._sent_bytes = 0
        self._told = False

    def send(self, name: str, logged: Logged, rank: int, at: float, step: float | None) -> None:
        """Send one; beyond the rank's limit, leave it out and say so once."""
        mime, content = logged.content()
        self._sent_bytes += len(content)
        if self._sent_bytes > RANK_BYTES:
            if not self._told:
                self._told = True
                text = f"mc.log: rank {rank} has logged {RANK_BYTES >> 20} MB of pictures and tables"
                print(f"{text}: further ones are left out. Log them less often.", file=sys.stderr)  # noqa: T201
            return
        media = Media(name=name, mime=mime, content=base64.b64encode(content).decode())  # pyright: ignore
        sending.send(Record(kind="media", rank=rank, at=at, step=step, media=media))


send = _Sender().send


def _array(value: Any, what: str) -> np.ndarray[Any, Any]:
    import numpy as np

    if callable(getattr(value, "detach", None)):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    try:
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return array
    except (TypeError, ValueError):
        pass
    raise NotShowable(
        f"{what} takes an array or a tensor of numbers, not {type(value).__name__}.",
        "np.asarray(...) of it has to be an array of numbers.",
    )


def _json(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


# Pictures.


def _pixels(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return bytes of shape (height, width, channels)."""
    import numpy as np

    shape = array.shape
    if array.ndim == 3 and shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not 0 < array.size <= _MOST_PIXELS:
        raise NotShowable(
            f"mc.Image() takes a picture of shape (height, width[, channels]), not {tuple(shape)}.",
            "Channels are 1, 3 or 4; take one picture of a batch: mc.Image(batch[0]).",
        )
    if array.dtype == np.uint8:
        return array
    scaled = array * 255.0 if array.dtype.kind in "fb" else array
    return np.clip(np.nan_to_num(scaled), 0, 255).round().astype(np.uint8)


def _png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Return pixels as a PNG file; the examples' picture library is not on every node."""
    height, width, channels = pixels.shape
    colour = {1: 0, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _checked_file(data: bytes) -> tuple[str, bytes]:
    mime = {b"\x89PNG": "image/png", b"\xff\xd8\xff\xe0": "image/jpeg", b"\xff\xd8\xff\xe1": "image/jpeg"}
    if data[:4] not in mime or len(data) > CONTENT_BYTES:
        raise NotShowable(
            f"mc.Image() takes a PNG or JPEG file of at most {CONTENT_BYTES} bytes; these are {len(data)}.",
            "Open it with PIL, and give that image.",
        )
    return mime[data[:4]], data


def _drawn(figure: Any) -> bytes:
    dpi = float(getattr(figure, "dpi", 100.0))
    while True:
        file = BytesIO()
        figure.savefig(file, format="png", bbox_inches="tight", dpi=dpi)
        if len(data := file.getvalue()) <= CONTENT_BYTES:
            return data
        dpi /= 2


# Tables.

Cell = str | int | float | bool | None


def _table(rows: Any, columns: Sequence[Any] | None) -> tuple[list[str], list[list[Cell]], int]:
    """Return the names of the columns, the rows, and how many rows there were."""
    if hasattr(rows, "itertuples") and hasattr(rows, "columns"):  # pandas
        names, listed, total = list(rows.columns), rows.itertuples(index=False), len(rows)
    elif isinstance(rows, Mapping):
        names, listed = list(rows), zip(*rows.values(), strict=False)
        total = min((len(column) for column in rows.values()), default=0)
    else:
        names, listed, total = _listed(rows, columns)
    cut = [[_cell(cell) for cell in islice(row, _MOST_COLUMNS)] for row in islice(listed, _MOST_ROWS)]
    return [str(name)[:_CELL_CHARS] for name in names[:_MOST_COLUMNS]], cut, total


def _listed(rows: Any, columns: Sequence[Any] | None) -> tuple[list[Any], Iterable[Iterable[Any]], int]:
    try:
        listed = list(rows.tolist() if hasattr(rows, "tolist") else rows)
        if listed and all(isinstance(row, Mapping) for row in listed):
            names = list(columns or dict.fromkeys(name for row in listed[:_MOST_ROWS] for name in row))
            return names, ([row.get(name) for name in names] for row in listed), len(listed)
        lists = [list(row) for row in listed[:_MOST_ROWS]]
    except TypeError:
        raise NotShowable(
            f"mc.Table() takes a DataFrame, rows, or a dict of columns, not {type(rows).__name__}.",
            'Like this: mc.Table([["cat", 0.9], ["dog", 0.8]], columns=["label", "accuracy"])',
        ) from None
    width = max(map(len, lists), default=0)
    names = list(columns or [str(number) for number in range(width)])
    return names, lists, len(listed)


def _cell(value: Any) -> Cell:
    if callable(getattr(value, "item", None)) and getattr(value, "shape", ()) in ((), (1,)):
        value = value.item()
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 1 << 53):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value).encode(errors="replace").decode()[:_CELL_CHARS]
