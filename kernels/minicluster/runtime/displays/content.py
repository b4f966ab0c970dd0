"""Converts an object to MIME data by its `_repr_*_` methods, as in notebooks."""

from __future__ import annotations

import base64
import json
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

TEXT = "text/plain"
JSON = "application/json"
_METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    JSON: "_repr_json_",
}
KNOWN = {TEXT, "image/gif", *_METHODS} - {JSON}
"""MIME types that a panel can show; other data is shown as text."""

_SOURCES = ("text/markdown", "text/latex")
_SAYS_NOTHING = re.compile(r"<IPython\.core\.display\.\w+ object>")


@dataclass
class DisplayContent:
    """Display data by MIME type: text, and images in base64. width, height: in pixels, if known."""

    data: dict[str, str] = field(default_factory=dict)
    width: int | None = None
    height: int | None = None

    @property
    def text(self) -> str:
        return self.data.get(TEXT, "")

    @property
    def plain(self) -> bool:
        return not self.data.keys() - {TEXT}


def content_of(value: Any) -> DisplayContent:
    """Return an object's display data; if its methods fail, its text, and print the traceback."""
    figures = sys.modules.get("matplotlib.figure")
    if figures is not None and isinstance(value, figures.Figure):
        return of_figure(value)
    data, metadata = _asked(value, "_repr_mimebundle_")
    for mime, method in _METHODS.items():
        if mime not in data:
            shown, about = _asked(value, method)
            if shown:
                data[mime], metadata[mime] = shown, about
    data.setdefault(TEXT, repr(value))
    return of_bundle(data, metadata)


def of_bundle(data: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> DisplayContent:
    """Return the display data of a MIME bundle, as given with IPython's `raw=True`."""
    content = DisplayContent({mime: _as_text(shown) for mime, shown in data.items() if mime in KNOWN})
    for about in (metadata or {}).values():
        if isinstance(about, Mapping):
            content.width = _pixels(about.get("width")) or content.width
            content.height = _pixels(about.get("height")) or content.height
    if "text/markdown" in content.data or _SAYS_NOTHING.fullmatch(content.text):
        texts = [content.data[mime] for mime in _SOURCES if mime in content.data]
        if JSON in data:  # No panel draws JSON as a tree, so show its text.
            texts.append(json.dumps(data[JSON], indent=2, ensure_ascii=False, default=repr))
        content.data[TEXT] = [*texts, content.text][0]
    return content


def of_figure(figure: Any) -> DisplayContent:
    """Draw a figure as notebooks do: as PNG, cropped to its content."""
    file = BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return DisplayContent({TEXT: repr(figure), "image/png": _as_text(file.getvalue())})


def _asked(value: Any, method: str) -> tuple[Any, dict[str, Any]]:
    """Return the data and metadata from an object's display method; no data if it has no such method."""
    none = {} if method == "_repr_mimebundle_" else None
    # Like IPython, skip classes, and look at the type, since some objects have an attribute of any name.
    if isinstance(value, type) or not callable(getattr(type(value), method, None)):
        return none, {}
    try:
        returned = getattr(value, method)()
    except Exception:
        traceback.print_exc()
        return none, {}
    shown, about = returned if isinstance(returned, tuple) else (returned, {})
    if none is not None:
        return dict(shown or {}), dict(about or {})
    return shown, about


def _as_text(shown: Any) -> str:
    if isinstance(shown, bytes):
        return base64.b64encode(shown).decode()
    return str(shown).encode(errors="replace").decode()  # Lone surrogates become "?".


def _pixels(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 < value < 10_000 else None
