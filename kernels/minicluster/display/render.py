"""The picture of a job that is saved in the notebook: HTML for any front end, and text."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import Iterable
from html import escape
from html.parser import HTMLParser
from itertools import groupby

from minicluster.display.ansi import as_html, without_colours
from minicluster.display.plot import number, plot_html
from minicluster.display.terminal import DisplayLine
from minicluster.display.view import Entry, RunView, duration, progress_words
from minicluster.wire import JobState

_MARKS = {
    JobState.SUCCEEDED: ("✓", "#2e7d32"),
    JobState.FAILED: ("✗", "#d32f2f"),
    JobState.STOPPED: ("■", "#b26a00"),
}
_BOX = (
    "border:1px solid var(--jp-border-color2,#d5d5d5);border-radius:6px;padding:8px 12px;max-width:1100px;"
    "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:1.45;"
    "color:var(--jp-ui-font-color1,inherit)"
)
_SOFT = "color:var(--jp-ui-font-color2,#777)"
_PRE = (
    "margin:4px 0 0;white-space:pre-wrap;overflow-wrap:anywhere;"
    "font-family:var(--jp-code-font-family,monospace);font-size:12px;line-height:1.35;background:transparent"
)
_SCROLLED = "max-height:460px;overflow:auto"
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/svg+xml")
_WIDE = "flex:1 1 360px;min-width:0"
_PICTURE_LINES = 100
_LINES_SO_FAR = 20
_RANKS_SO_FAR = 8

_STYLE_VALUE = re.compile(r"[\w\s#%.,()\-]{1,100}")
_PICTURE = re.compile(r"data:image/(?:png|jpeg|gif);base64,[A-Za-z0-9+/=\s]+")


def mime_bundle(view: RunView, now: float) -> dict[str, str]:
    """Return the picture and its text by MIME type.

    An open job's picture may stay outdated: it states its time and the command that shows the job again.
    """
    return {"text/html": picture(view, now), "text/plain": text_form(view, now)}


def picture(view: RunView, now: float) -> str:
    """Return HTML without scripts or widgets; user text is escaped.

    JupyterLab removes inline styles from untrusted notebooks, so panel.css repeats them by class.
    """
    body = [_headline(view, now)]
    progress = view.metrics.progress
    words = progress_words(progress)["text"] if progress is not None else ""
    for line in filter(None, (_how_to_look_again(view), view.detail(now), words)):
        body.append(f'<div class="mc-soft" style="{_SOFT}">{escape(line)}</div>')
    ended = view.job.state.terminal
    ranks = sorted(view.tails) if ended else sorted(view.tails)[:_RANKS_SO_FAR]
    outputs = "".join(_output(view, rank) for rank in ranks)
    metrics = view.metrics
    plot = plot_html(metrics.curves, metrics.left_out, metrics.other_ranks, as_image=True)
    columns = '<div class="mc-columns" style="display:flex;flex-wrap:wrap;gap:12px">'
    body.append(f'{columns}<div style="{_WIDE}">{outputs}</div>')
    body.append(f'<div style="flex:0 1 380px;margin-top:6px">{plot}</div></div>' if plot else "</div>")
    return f'<div class="mc-picture" style="{_BOX}">{"".join(body)}</div>'


def text_form(view: RunView, now: float) -> str:
    """Return the picture as text, for front ends and exports without HTML."""
    lines = [f"{_title(view, now)} · {_facts(view, now)}"]
    lines.extend(filter(None, (_how_to_look_again(view), view.detail(now))))
    lines.extend(f"{name}: {number(curve.last)}" for name, curve in view.metrics.curves.items())
    lines.extend([f"+{len(more)} more"] if (more := view.metrics.left_out) else [])
    first = view.first_shown()
    if first is not None:
        lines.extend(map(without_colours, view.tails[first].lines()[-10:]))
    return "\n".join(lines)


def _title(view: RunView, now: float) -> str:
    if view.job.state.terminal:
        return view.title()
    return f"Last seen {time.strftime('%d %b %H:%M:%S', time.localtime(now))}: {view.title()}"


def _how_to_look_again(view: RunView) -> str:
    """Return the command that shows the job again where no panel reopens by itself."""
    return "" if view.job.state.terminal else f"Look again: %distribute attach {view.job.id}"


def _facts(view: RunView, now: float) -> str:
    job = view.job
    word = "run time" if job.started_at is not None else "waited"
    name = [] if job.name == "cell" else [job.name]
    facts = [f"job {job.id}", *name, ", ".join(job.nodes), f"{word} {duration(view.elapsed_s(now))}"]
    return " · ".join(fact for fact in facts if fact)


def _headline(view: RunView, now: float) -> str:
    mark, colour = _MARKS.get(view.job.state, ("●", "#b26a00"))
    link = f'<a href="{escape(view.log_path, quote=True)}" target="_blank" rel="noopener">full log</a>'
    return (
        f'<div><span style="color:{colour};font-weight:600" aria-hidden="true">{mark}</span> '
        f"<b>{escape(_title(view, now))}</b> "
        f'<span class="mc-soft" style="{_SOFT}">{escape(_facts(view, now))} · {link}</span></div>'
    )


def _output(view: RunView, rank: int) -> str:
    tail = view.tails[rank]
    lines = tail.entries()
    shown = lines[-_PICTURE_LINES:] if view.job.state.terminal else _small(lines)
    cut = len(shown) < len(lines) or tail.whole().first > 0 or view.skipped_bytes.get(rank, 0) > 0
    earlier = ["… (earlier output: see the full log)"] if cut else []
    parts = entries_html([*earlier, *(view.entry(rank, line) for line in shown)])
    opened = " open" if rank == view.first_shown() else ""
    summary = f'<summary class="mc-soft" style="cursor:pointer;{_SOFT}">rank {rank}</summary>'
    return (
        f'<details{opened} style="margin-top:6px">{summary}<div style="{_SCROLLED}">{parts}</div></details>'
    )


def _small(lines: list[str | DisplayLine]) -> list[str | DisplayLine]:
    """Return the newest lines and only the newest display, since this picture is sent often."""
    newest = lines[-_LINES_SO_FAR:]
    displayed = [line for line in newest if not isinstance(line, str)]
    return [line for line in newest if isinstance(line, str) or line is displayed[-1]]


def entries_html(entries: Iterable[Entry]) -> str:
    """Return lines and the displays between them as HTML for any front end."""
    parts: list[str] = []
    for plain, group in groupby(entries, key=lambda entry: isinstance(entry, str)):
        if plain:
            text = "\n".join(as_html(str(line)) for line in group)
            parts.append(f'<pre class="mc-kept" style="{_PRE}">{text}</pre>')
        else:
            parts.extend(_displayed(entry) for entry in group if isinstance(entry, dict))
    return "".join(parts)


def _displayed(entry: dict[str, str | int]) -> str:
    for mime in _IMAGES:
        if mime in entry:
            return _image(mime, entry)
    if "text/html" in entry and (safe := sanitized(str(entry["text/html"]))):
        return f'<div style="margin:4px 0;overflow-x:auto">{safe}</div>'
    return f'<pre class="mc-kept" style="{_PRE}">{escape(str(entry.get("text/plain", "")))}</pre>'


def _image(mime: str, entry: dict[str, str | int]) -> str:
    data = str(entry[mime])
    if mime == "image/svg+xml":
        data = b64encode(data.encode()).decode()
    sizes = "".join(f' {name}="{entry[name]}"' for name in ("width", "height") if name in entry)
    alt = escape(str(entry.get("text/plain", "")), quote=True)
    source = f"data:{mime};base64,{escape(data, quote=True)}"
    return f'<img src="{source}" alt="{alt}"{sizes} style="display:block;max-width:100%;margin:4px 0">'


# Sanitizes HTML that a rank displayed, for a picture saved in a notebook: it copies only allowed elements,
# attributes and styles. Scripts, frames, forms, handlers and most links are removed. A panel shows the
# unchanged HTML in a frame.


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELEMENTS = _words(
    "table caption colgroup col thead tbody tfoot tr th td div span p br hr h1 h2 h3 h4 h5 h6 b strong "
    "i em u s small sub sup code pre kbd blockquote ul ol li dl dt dd details summary progress a img"
)
_EMPTY = _words("br hr img col")
_SILENT = _words("script style template title head noscript iframe object svg math")
"""Elements removed with their content."""
_ATTRIBUTES = _words("colspan rowspan scope align width height border value max title alt open start")
_STYLES = _words(
    "color background-color font-weight font-style font-size text-align text-decoration vertical-align "
    "white-space width min-width max-width height padding margin border border-bottom border-top "
    "border-collapse"
)


def sanitized(html: str) -> str:
    """Return the allowed part of HTML; "" if nothing is left."""
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
            allowed = "".join(_attribute(tag, name, value or "") for name, value in attrs)
            self._parts.append(f"<{tag}{allowed}>")
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
        """Return the HTML with all elements closed, so that later content is outside of them."""
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
    parts = (part.partition(":") for part in text.split(";"))
    styles = [(name.strip().lower(), value.strip()) for name, _, value in parts]
    return ";".join(
        f"{name}:{value}"
        for name, value in styles
        if name in _STYLES
        and _STYLE_VALUE.fullmatch(value)
        and not re.search(r"(url|expression|var)\s*\(", value, re.IGNORECASE)
    )
