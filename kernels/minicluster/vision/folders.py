"""CINIC-10 and what is laid out like it: ROOT/{train,valid,test}/CLASS/*.png, 32 x 32 pixels each."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import Dataset

from minicluster.errors import MiniclusterError
from minicluster.vision.decoding import decode

SPLITS = ("train", "valid", "test")


class WrongLayout(MiniclusterError):
    """A folder that does not hold images as it should."""


@dataclass(frozen=True)
class Listing:
    """The files of a split in one order everywhere."""

    folder: Path
    classes: tuple[str, ...]
    names: list[str]
    labels: list[int]

    def digest(self) -> str:
        """Return another one where a file has another name, size or time of its last change.

        To ask each file takes ten times as long as to list them. Raises OSError.
        """
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            facts = [os.stat(name, dir_fd=folder) for name in self.names]
        finally:
            os.close(folder)
        files = [(fact.st_size, fact.st_ctime_ns) for fact in facts]
        found = hashlib.sha256(repr((self.folder.resolve(), self.names, files)).encode())
        return found.hexdigest()


class Images(Dataset[tuple[torch.Tensor, int]]):
    """The images of one split: `loader = DataLoader(Images("/data/cinic10", "train"), 100, shuffle=True)`.

    Each is a (3, 32, 32) tensor of bytes with the number of its class in `classes`; what a batch needs
    besides (augmented, normalized) is done on the device, for all of it at once. All files are decoded
    once, by the first rank of a node that asks, into a file that the node's ranks share, of 3 kB for
    each image. cache: the folder of that file, False for none: then files are decoded when they are
    asked for, and num_workers of the loader says by how many processes. It travels as its arguments: a
    rank looks into its own node's folder. Not on Linux there is none. Raises WrongLayout, DamagedImage.
    """

    def __init__(self, root: str | Path, split: str, cache: str | Path | bool = True) -> None:
        self._arguments = root, split, cache
        self._listing = listed(Path(root), split)
        self._pixels: torch.Tensor | None = None
        if cache is not False and sys.platform == "linux":
            self._keep(None if cache is True else Path(cache))

    @property
    def classes(self) -> tuple[str, ...]:
        return self._listing.classes

    def __len__(self) -> int:
        return len(self._listing.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indexes: list[int]) -> list[tuple[torch.Tensor, int]]:
        """Return a whole batch: DataLoader asks for it in one call."""
        labels = [self._listing.labels[index] for index in indexes]
        return list(zip(self._images(indexes).unbind(), labels, strict=True))

    def __reduce__(self) -> tuple[type[Images], tuple[str | Path, str, str | Path | bool]]:
        return Images, self._arguments

    def _images(self, indexes: list[int]) -> torch.Tensor:
        if self._pixels is not None:
            return self._pixels.index_select(0, torch.tensor(indexes))  # Four times as fast as [indexes].
        names = [self._listing.names[index] for index in indexes]
        return torch.from_numpy(decode(self._listing.folder, names))

    def _keep(self, asked: Path | None) -> None:
        from minicluster.vision import pixels  # Made of Linux' own calls; a laptop may run something else.

        listing, cache = self._listing, asked or pixels.default_folder()
        try:
            self._pixels = pixels.kept(cache, listing.digest, listing.folder, listing.names)
        except OSError as error:
            warnings.warn(
                f"The images are decoded anew in each epoch, since {cache} cannot hold them "
                f"({error.strerror}). Images(..., cache=FOLDER) takes another folder.",
                stacklevel=3,
            )


def listed(root: Path, split: str) -> Listing:
    """Find the files of a split. Raises WrongLayout."""
    folder = root / split
    classes = _classes(root, split)
    names: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        files = sorted(_files(folder / name))
        if not files:
            raise _wrong(root, f"{folder / name} holds no PNG file.")
        names += [f"{name}/{file}" for file in files]
        labels += [label] * len(files)
    return Listing(folder, classes, names, labels)


def _classes(root: Path, split: str) -> tuple[str, ...]:
    """Return the names of the classes; a class that one split lacks would shift the numbers."""
    splits = _folders(root)
    if split not in splits:
        there = f"it holds {_some(splits)}" if root.is_dir() else "there is no such folder"
        raise _wrong(root, f"{root} has no folder {split}: {there}.")
    classes = _folders(root / split)
    if not classes:
        raise _wrong(root, f"{root / split} has no folder for any class.")
    for other in sorted({*SPLITS} & {*splits}):
        if differing := sorted({*classes} ^ {*_folders(root / other)}):
            raise _wrong(root, f"The classes of {split} and {other} in {root} differ: {_some(differing)}.")
    return tuple(classes)


def _folders(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and _is_ours(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _files(path: Path) -> list[str]:
    """Return the names of the PNG files in a folder."""
    names = (entry.name for entry in os.scandir(path))
    return [name for name in names if name.lower().endswith(".png") and _is_ours(name)]


def _is_ours(name: str) -> bool:
    """Tell files of the data set from what macOS puts beside them (._name, .DS_Store, __MACOSX)."""
    return not name.startswith((".", "__MACOSX"))


def _wrong(root: Path, found: str) -> WrongLayout:
    expected = f"Expected: {root}/{{{','.join(SPLITS)}}}/CLASS/*.png, the same classes in each."
    return WrongLayout(found, expected)


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "") if names else "no folder"
