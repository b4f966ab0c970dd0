"""Replaces `tqdm.notebook` on a rank by the terminal's bar, which the panel updates in place."""

from __future__ import annotations

from typing import Any

from tqdm.std import tqdm  # type: ignore[import-untyped]


class TextBar(tqdm):
    """Accepts the arguments of the notebook's bar."""

    def __init__(self, *args: Any, display: bool = True, **options: Any) -> None:
        super().__init__(*args, **options)


def text_range(*args: int, **options: Any) -> TextBar:
    return TextBar(range(*args), **options)
