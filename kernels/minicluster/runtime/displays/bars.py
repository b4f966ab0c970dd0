"""`tqdm.notebook` on a rank: the bar of a terminal, which moves in the panel."""

from __future__ import annotations

from typing import Any

from tqdm.std import tqdm  # type: ignore[import-untyped]


class TextBar(tqdm):
    """Takes what the notebook's bar takes."""

    def __init__(self, *args: Any, display: bool = True, **options: Any) -> None:
        super().__init__(*args, **options)


def text_range(*args: int, **options: Any) -> TextBar:
    return TextBar(range(*args), **options)
