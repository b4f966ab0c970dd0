"""Files named in the documentation exist."""

from __future__ import annotations

import re
from pathlib import Path

TREE = Path(__file__).resolve().parents[3]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{name}.md" for name in ("architecture", "internals", "decisions")),
]
TOPS = ["hub_ext", "kernels", "spawner", "images", "notebooks", "bench", "tests", "docs"]
MADE_LATER = re.compile(r"NAME|^\.test-results|^daemon\.json$")
"""Examples of names, and files created by a run."""


def test_each_file_that_the_architecture_names_is_there() -> None:
    known = [
        f"/{path.relative_to(TREE)}{'/' * path.is_dir()}" for top in TOPS for path in (TREE / top).rglob("*")
    ]
    known += [f"/{top}/" for top in TOPS] + [f"/{path.name}" for path in TREE.iterdir()]
    named = {
        (page, name)
        for page in PAGES
        for name in re.findall(r"`([\w./-]+(?:\.(?:py|js|toml|ipynb)|/))`", (TREE / page).read_text())
        if not MADE_LATER.search(name)
    }
    assert len(named) > 50
    lost = [
        f"{page}: {name}"
        for page, name in sorted(named)
        if not any(one.endswith(f"/{name}") for one in known)
    ]
    assert not lost, "\n" + "\n".join(lost)
