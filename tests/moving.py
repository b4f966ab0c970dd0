"""The documented way from a Swarm to another engine: its commands, with the paths and users of a test."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from .documents import blocks

ARCHIVE, HOME_ARCHIVE = "minicluster.tgz", "ada.tgz"


def backup_commands(tree: Path, image: str) -> str:
    """Return the commands that end a Swarm's cluster and pack its data into ARCHIVE."""
    (first, *_) = _commands(tree, "administration", "## 8. Backup and restore")
    kept = [line for line in first.splitlines() if not line.rstrip().endswith("# resumes")]
    return "\n".join(kept).replace("IMAGE=...", f"IMAGE={image}")


def home_commands(tree: Path, image: str) -> str:
    """Return the commands that pack Ada's home into HOME_ARCHIVE, on the machine that has its volume."""
    _, pack, _ = _of_moving(tree)
    return f"IMAGE={image}\n{pack}"


def unpack(tree: Path, folder: Path, data: Path, home: Path) -> None:
    """Unpack both archives, which are in a folder, into a new data folder and Ada's home."""
    data_commands, _, home_commands = _of_moving(tree)
    _run(data_commands, folder, {"/srv/minicluster": str(data), "minicluster: ": "root: "})
    home.mkdir(parents=True, exist_ok=True)
    _run(home_commands, folder, {"~ada": str(home), " ada: ": " root: "})


def _of_moving(tree: Path) -> list[str]:
    return _commands(tree, "engines", "## From Swarm to another engine")


def _commands(tree: Path, page: str, heading: str) -> list[str]:
    text = (tree / "docs" / f"{page}.md").read_text()
    _, found, section = text.partition(f"\n{heading}\n")
    assert found, f"docs/{page}.md has no section {heading}"
    return [block.source for block in blocks(section.partition("\n## ")[0]) if block.kind == "bash"]


def _run(commands: str, folder: Path, replaced: Mapping[str, str]) -> None:
    for before, after in replaced.items():
        assert before in commands, f"no {before!r} in:\n{commands}"
        commands = commands.replace(before, after)
    done = subprocess.run(["bash", "-euc", commands], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{commands}\n{done.stderr}"
