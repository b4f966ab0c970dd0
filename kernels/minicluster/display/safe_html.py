"""HTML that a rank displayed, without what could act: for a picture that stays in a notebook.

Only listed elements, attributes and styles are written again; scripts, frames, forms, handlers and links to
elsewhere are left out. A panel shows the whole in a frame of its own instead.
"""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELEMENTS = _words(
    "table caption colgroup col thead tbody tfoot tr th td div span p br hr h1 h2 h3 h4 h5 h6 b strong "
    "i em u s small sub sup code pre kbd blockquote ul ol li dl dt dd details summary progress a img"
)
_EMPTY = _words("br hr img col")
_SILENT = _words("script style template title head noscript iframe object svg math")
"""Their content is no text for people, or not for here."""
_ATTRIBUTES = _words("colspan rowspan scope align width height border value max title alt open start")
_STYLES = _words(
    "color background-color font-weight font-style font-size text-align text-decoration vertical-align "
    "white-space width min-width max-width height padding margin border border-bottom border-top "
    "border-collapse"
)
_STYLE_VALUE = re.compile(r"[\w\s#%.,()\-]{1,100}")
_PICTURE = re.compile(r"data:image/(?:png|jpeg|gif);base64,[A-Za-z0-9+/=\s]+")


def sanitized(html: str) -> str:
    """Return what may be shown of some HTML; empty when there is nothing of it."""
    writer = _Writer()
    writer.feed(html)
    writer.close()
    return writer.result()


class _Writer(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._open: list[str] = []
        self._silent: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SILENT:
            self._silent.append(tag)
        elif not self._silent and tag in _ELEMENTS:
            kept = "".join(_attribute(tag, name, value or "") for name, value in attrs)
            self._parts.append(f"<{tag}{kept}>")
            if tag not in _EMPTY:
                self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._silent:
            if tag == self._silent[-1]:
                self._silent.pop()
        elif tag in self._open:
            while True:
                closed = self._open.pop()
                self._parts.append(f"</{closed}>")
                if closed == tag:
                    return

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self._parts.append(escape(data))

    def result(self) -> str:
        """Return all with every element closed: what follows must not stand inside."""
        text = "".join(self._parts)
        return text + "".join(f"</{tag}>" for tag in reversed(self._open)) if text.strip() else ""


def _attribute(tag: str, name: str, value: str) -> str:
    if name == "style":
        value = _style(value)
    elif tag == "a" and name == "href":
        value = value if value.startswith(("https://", "http://")) else ""
    elif tag == "img" and name == "src":
        value = value if _PICTURE.fullmatch(value) else ""
    elif name not in _ATTRIBUTES:
        value = ""
    more = ' target="_blank" rel="noopener noreferrer"' if tag == "a" and value else ""
    return f' {name}="{escape(value, quote=True)}"{more}' if value else ""


def _style(text: str) -> str:
    kept = []
    for part in text.split(";"):
        name, _, value = part.partition(":")
        name, value = name.strip().lower(), value.strip()
        allowed = name in _STYLES and _STYLE_VALUE.fullmatch(value)
        if allowed and not re.search(r"(url|expression|var)\s*\(", value, re.IGNORECASE):
            kept.append(f"{name}:{value}")
    return ";".join(kept)
