"""How an object is displayed: by its own `_repr_*_` methods, as in notebooks."""

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
"""Types that a panel can show; of others only the text is."""

_SOURCES = ("text/markdown", "text/latex")
_SAYS_NOTHING = re.compile(r"<IPython\.core\.display\.\w+ object>")


@dataclass
class DisplayContent:
    """What to display, by MIME type: text, and images in base64. width, height: in pixels, where known."""

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
    """Return how an object displays itself; as text, with the traceback, if its methods fail."""
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
    """Take a MIME bundle, as IPython's `raw=True` does."""
    content = DisplayContent({mime: _as_text(shown) for mime, shown in data.items() if mime in KNOWN})
    for about in (metadata or {}).values():
        if isinstance(about, Mapping):
            content.width = _pixels(about.get("width")) or content.width
            content.height = _pixels(about.get("height")) or content.height
    if "text/markdown" in content.data or _SAYS_NOTHING.fullmatch(content.text):
        texts = [content.data[mime] for mime in _SOURCES if mime in content.data]
        if JSON in data:  # Nobody draws a tree of it: its text is to be read.
            texts.append(json.dumps(data[JSON], indent=2, ensure_ascii=False, default=repr))
        content.data[TEXT] = [*texts, content.text][0]
    return content


def of_figure(figure: Any) -> DisplayContent:
    """Draw a figure as notebooks do: PNG, cut to what is drawn."""
    file = BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return DisplayContent({TEXT: repr(figure), "image/png": _as_text(file.getvalue())})


def _asked(value: Any, method: str) -> tuple[Any, dict[str, Any]]:
    """Return what a method of an object says, and what it says about that; nothing where there is none."""
    none = {} if method == "_repr_mimebundle_" else None
    # As IPython does: a class is no instance of itself, and some objects answer to every name.
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
    return str(shown).encode(errors="replace").decode()  # Half a character, as in some files' names, is none.


def _pixels(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 < value < 10_000 else None
