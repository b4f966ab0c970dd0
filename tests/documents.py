"""Reads the code blocks in our documents."""

from __future__ import annotations

import re
from argparse import SUPPRESS
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from minicluster.commands import COMMANDS
from minicluster.options import cell_arguments
from minicluster_hub.engines import abilities
from minicluster_hub.engines.base import Engine
from minicluster_hub.engines.entry_points import engine_class

_BLOCK = re.compile(
    r"^(?:<!-- not run on one machine: (?P<reason>.+?) -->\n)?```(?P<kind>\w*)\n(?P<source>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """kind: the word after the fence. reason: why the block is not run on one machine."""

    kind: str
    source: str
    reason: str = ""

    @property
    def cell(self) -> str:
        """The block as typed into a notebook."""
        return f"%%bash\n{self.source}" if self.kind == "bash" else self.source


def blocks(text: str) -> list[Block]:
    return [Block(found["kind"], found["source"], found["reason"] or "") for found in _BLOCK.finditer(text)]


def reference() -> dict[str, str]:
    """Generate the guide's tables of options and commands from their declarations, by heading."""
    options = [one for one in cell_arguments() if one.help != SUPPRESS]
    return {
        "`%%distribute`": _table((f"{one.name} {one.more.get('metavar', '')}", one.help) for one in options),
        "`%distribute`": _table((one.usage, one.help) for one in COMMANDS.values()),
    }


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(f"| `{name.strip()}` | {help} |\n" for name, help in rows)


def with_reference(guide: str) -> str:
    """Return the guide with regenerated tables."""
    for head, table in reference().items():
        start = guide.index(f"| {head} | |\n|---|---|\n") + len(f"| {head} | |\n|---|---|\n")
        guide = guide[:start] + table + guide[guide.index("\n\n", start) + 1 :]
    return guide


ENGINES = ("local", "swarm", "slurm", "kubernetes")
_TABLE = re.compile(r"^\| \| `local` .*?(?=\n\n)", re.MULTILINE | re.DOTALL)


def engines() -> list[tuple[str, Engine]]:
    """Return the engines with their default options; none is opened."""
    with TemporaryDirectory() as folder:
        options = {"swarm": {}, "kubernetes": {"data_storage_class": "local-path"}}
        return [(name, engine_class(name)(**options.get(name, {"data_dir": folder}))) for name in ENGINES]


def engines_table() -> str:
    """Generate the table of what each engine can."""
    return abilities.table(engines()).rstrip("\n")


def with_engines(page: str) -> str:
    """Return the page of the engines with a regenerated table."""
    return _TABLE.sub(lambda _: engines_table(), page)


if __name__ == "__main__":
    docs = Path(__file__).resolve().parents[1] / "docs"
    for name, renewed in (("guide", with_reference), ("engines", with_engines)):
        path = docs / f"{name}.md"
        path.write_text(renewed(path.read_text()))
