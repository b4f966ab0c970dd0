"""The code in our documents, block by block."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLOCK = re.compile(
    r"^(?:<!-- not run on one machine: (?P<reason>.+?) -->\n)?```(?P<kind>\w*)\n(?P<source>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """kind: what stands behind the fence. reason: why it is not run on one machine."""

    kind: str
    source: str
    reason: str = ""

    @property
    def cell(self) -> str:
        """As it is typed into a notebook."""
        return f"%%bash\n{self.source}" if self.kind == "bash" else self.source


def blocks(text: str) -> list[Block]:
    return [Block(found["kind"], found["source"], found["reason"] or "") for found in _BLOCK.finditer(text)]
