"""Seeds: image data of an engine's disk, pulled once and hard-linked into the disks of later labs.

Without them, pulling, unpacking and removing two gigabytes on each node of each lab would take minutes. An
unpacked layer's files never change: containers write elsewhere, and removing an image removes only its links.
So nodes share these files with the seed by hard links. The engine's metadata on images is a few megabytes,
which each node copies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .paths import cache_folder
from .processes import remove_tree, run

LINKED, COPIED = "overlay2", "image"
"""The folders of an engine's data for images: their layers, and their metadata."""
_KEPT = 2
"""Number of seeds kept for the same image names: two source trees may be tested in turn."""


@dataclass(frozen=True)
class Seed:
    """A folder with the data of some images, known by names and ids."""

    folder: Path

    @classmethod
    def found(cls, names: tuple[str, ...]) -> list[Seed]:
        """Return all seeds with exactly these images, of any age and tag, the last used first."""
        seeds = [cls(note.parent) for note in _folder().glob("*/ids.json")]
        same = [seed for seed in seeds if _without_tags(seed.ids()) == _without_tags(names)]
        return sorted(same, key=lambda seed: seed._note.stat().st_mtime, reverse=True)

    @classmethod
    def keep(cls, data: Path, ids: Mapping[str, str]) -> Seed:
        """Move a stopped engine's images into a new seed; remove older seeds of their names."""
        _folder().mkdir(parents=True, exist_ok=True)
        seeds = [cls(folder) for folder in _folder().iterdir()]
        for cut_off in (seed for seed in seeds if not seed._note.exists()):
            remove_tree(cut_off.folder)
        seed = cls(_folder() / str(1 + max((int(seed.folder.name) for seed in seeds), default=0)))
        seed.folder.mkdir()
        for part in (LINKED, COPIED):
            (data / part).rename(seed.folder / part)
        unfinished = seed._note.with_suffix(".new")
        unfinished.write_text(json.dumps(dict(ids)))
        unfinished.rename(seed._note)  # this makes the seed valid
        for old in cls.found(tuple(ids))[_KEPT:]:
            old.forget()
        return seed

    def ids(self) -> dict[str, str]:
        return json.loads(self._note.read_text())

    def plant(self, data: Path) -> None:
        """Put these images into the data of an engine that has not started yet."""
        os.utime(self._note)
        data.mkdir(parents=True, exist_ok=True)
        run("cp", "--archive", "--link", self.folder / LINKED, data)
        run("cp", "--archive", self.folder / COPIED, data)

    def forget(self) -> None:
        self._note.unlink()
        remove_tree(self.folder)

    @property
    def _note(self) -> Path:
        return self.folder / "ids.json"


def _without_tags(names: Iterable[str]) -> set[str]:
    return {name.partition(":")[0] for name in names}


def _folder() -> Path:
    return cache_folder() / "seeds"
