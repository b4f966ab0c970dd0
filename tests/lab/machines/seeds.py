"""Seeds: what an engine's disk holds of images, pulled once, and linked into the disks of later labs.

To pull and unpack two gigabytes on each node of each lab took minutes, and to remove them again. A layer's
files are never written after it was unpacked: the engine puts containers' writes elsewhere, and an image
that is removed loses its own links only. So nodes can share them with the seed by hard links. What the
engine knows of its images is a few megabytes: each node has a copy.
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
"""The folders of an engine's data that images are in: their layers, and what is known of them."""
_KEPT = 2
"""Seeds of the same images: those of two trees, which may be tested by turns."""


@dataclass(frozen=True)
class Seed:
    """Images, by their names and ids, on no node's disk yet."""

    folder: Path

    @classmethod
    def found(cls, names: tuple[str, ...]) -> list[Seed]:
        """Return the seeds of just these images, of all ages and tags; the one used last comes first."""
        seeds = [cls(note.parent) for note in _folder().glob("*/ids.json")]
        same = [seed for seed in seeds if _without_tags(seed.ids()) == _without_tags(names)]
        return sorted(same, key=lambda seed: seed._note.stat().st_mtime, reverse=True)

    @classmethod
    def keep(cls, data: Path, ids: Mapping[str, str]) -> Seed:
        """Take the images out of the data of an engine that has ended; forget older seeds of their names."""
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
        unfinished.rename(seed._note)  # only now it is one
        for old in cls.found(tuple(ids))[_KEPT:]:
            old.forget()
        return seed

    def ids(self) -> dict[str, str]:
        return json.loads(self._note.read_text())

    def plant(self, data: Path) -> None:
        """Give an engine that has not started yet these images."""
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
