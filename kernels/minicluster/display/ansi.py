"""Terminal colours: SGR sequences as pens; coloured text as HTML or as plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape

COLOUR = re.compile(r"\x1b\[([0-9;:]{0,64})m")
_NAMED = (
    *("#3e424d", "#e75c58", "#00a250", "#ddb62b", "#208ffb", "#d160c4", "#60c6c8", "#a1a6b2"),
    *("#282c36", "#b22b31", "#007427", "#b27d12", "#0065ca", "#a03196", "#258f8f", "#737a87"),
)
"""The sixteen colours, readable on white and on black."""
_ATTRIBUTES = {1: "bold", 2: "faint", 3: "italic", 4: "underlined"}
_ENDED = {22: ("bold", "faint"), 23: ("italic",), 24: ("underlined",), 39: ("colour",), 49: ("background",)}
_STYLES = {
    "bold": "font-weight:bold",
    "faint": "opacity:0.7",
    "italic": "font-style:italic",
    "underlined": "text-decoration:underline",
}


@dataclass(frozen=True)
class Pen:
    """Text attributes. Colours are SGR parameters: "31", "38;5;200", "48;2;0;0;9"."""

    bold: bool = False
    faint: bool = False
    italic: bool = False
    underlined: bool = False
    colour: str = ""
    background: str = ""

    def after(self, parameters: str) -> Pen:
        """Return the pen after an SGR sequence with these parameters."""
        pen = self
        codes = [int(code or 0) for code in re.split("[;:]", parameters)]
        while codes:
            code = codes.pop(0)
            if code in (38, 48):
                taken = codes[: 2 if codes[:1] == [5] else 4]
                del codes[: len(taken)]
                pen = pen._coloured(";".join(map(str, [code, *taken])), background=code == 48)
            else:
                pen = pen._simply(code)
        return pen

    def _simply(self, code: int) -> Pen:
        if code == 0:
            return Pen()
        if code in _ATTRIBUTES:
            return replace(self, **{_ATTRIBUTES[code]: True})
        if code in _ENDED:
            return replace(self, **{name: getattr(PLAIN, name) for name in _ENDED[code]})
        if 30 <= code <= 37 or 90 <= code <= 97:
            return self._coloured(str(code), background=False)
        if 40 <= code <= 47 or 100 <= code <= 107:
            return self._coloured(str(code), background=True)
        return self

    def _coloured(self, colour: str, *, background: bool) -> Pen:
        return replace(self, background=colour) if background else replace(self, colour=colour)

    def sequence(self) -> str:
        """Return the escape sequence that switches from default attributes to this pen."""
        codes = [str(code) for code, name in _ATTRIBUTES.items() if getattr(self, name)]
        codes += [colour for colour in (self.colour, self.background) if colour]
        return f"\x1b[{';'.join(codes)}m" if codes else ""

    def css(self) -> str:
        styles = [style for name, style in _STYLES.items() if getattr(self, name)]
        styles += [f"color:{_css(self.colour)}"] if self.colour else []
        styles += [f"background-color:{_css(self.background)}"] if self.background else []
        return ";".join(styles)


PLAIN = Pen()
RESET = "\x1b[0m"


def runs(text: str) -> Iterator[tuple[str, Pen]]:
    """Split coloured text into pieces; yield each with its pen."""
    pen = PLAIN
    for number, part in enumerate(COLOUR.split(text)):
        if number % 2:
            pen = pen.after(part)
        elif part:
            yield part, pen


def without_colours(text: str) -> str:
    return COLOUR.sub("", text)


def as_html(text: str) -> str:
    """Convert coloured text to HTML and escape its content."""
    return "".join(
        escape(part) if pen == PLAIN else f'<span style="{pen.css()}">{escape(part)}</span>'
        for part, pen in runs(text)
    )


def _css(colour: str) -> str:
    """Convert an SGR colour to CSS."""
    codes = [int(code) for code in colour.split(";")]
    if codes[0] not in (38, 48):
        tone = codes[0] % 10
        return _NAMED[tone + (8 if codes[0] >= 90 else 0)]
    if codes[1:2] == [2] and len(codes) == 5:
        return f"rgb({min(codes[2], 255)},{min(codes[3], 255)},{min(codes[4], 255)})"
    return _of_256(codes[2]) if codes[1:2] == [5] and len(codes) == 3 else "inherit"


def _of_256(number: int) -> str:
    if number < 16:
        return _NAMED[number]
    if number >= 232:
        grey = 8 + 10 * (min(number, 255) - 232)
        return f"rgb({grey},{grey},{grey})"
    steps = (0, 95, 135, 175, 215, 255)
    red, rest = divmod(number - 16, 36)
    return f"rgb({steps[red]},{steps[rest // 6]},{steps[rest % 6]})"
