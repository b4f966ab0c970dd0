"""The files beside the notebook that --with names, as one blob: the same files make the same blob.

On the ranks they are in the working folder, which then belongs to this job alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from minicluster.capture.payload import pack
from minicluster.errors import MiniclusterError
from minicluster.pickling.pickling import readable_size
from minicluster.wire import relative_path

_FILES_LIMIT = 10_000
_LARGEST_SHOWN = 3


class BundleNotSendable(MiniclusterError):
    """What --with names cannot be sent."""


def pack_bundle(names: Iterable[str], folder: Path, limit_bytes: int) -> bytes:
    """Read the files and folders of these names, relative to the notebook's folder.

    What is named itself is always sent. The ignore file applies to what is inside a folder.
    Raises BundleNotSendable.
    """
    folder = folder.absolute()
    try:
        files = sorted(set(_all_files(names, folder)))
        sizes = {path: (folder / path).stat().st_size for path in files}
        if sum(sizes.values()) > limit_bytes or len(sizes) > _FILES_LIMIT:
            raise _too_large(sizes, limit_bytes)
        sections = {path: (folder / path).read_bytes() for path in files}
    except OSError as error:
        raise BundleNotSendable(f"{error.filename} cannot be read: {error.strerror}.") from error
    runnable = [path for path in files if os.access(folder / path, os.X_OK)]
    return pack({"kind": "bundle", "runnable": runnable}, sections)


def _all_files(names: Iterable[str], folder: Path) -> Iterator[str]:
    ignored = Ignored.beside(folder)
    for name in names:
        for path in _named(name, folder):
            relative = path.relative_to(folder).as_posix()
            for file in _below(path, folder, ignored) if path.is_dir() else [relative]:
                yield _sendable(file, folder)


def _named(name: str, folder: Path) -> list[Path]:
    """Return the path of this name, or the paths that match it as a pattern."""
    path = Path(os.path.normpath(folder / name))
    if not path.is_relative_to(folder):
        raise BundleNotSendable(
            f"--with {name}: only what is beside the notebook (in {folder}) can travel.",
            "Copy it there, or make it a data set: %distribute data push.",
        )
    if path.exists():
        return [path]
    try:
        found = sorted(folder.glob(path.relative_to(folder).as_posix()))
    except ValueError:
        raise BundleNotSendable(
            f"--with {name}: ** stands alone between slashes.", "Like this: --with '**/*.json'"
        ) from None
    if found:
        return found
    raise BundleNotSendable(f"--with {name}: there is no such file or folder in {folder}.")


def _below(root: Path, folder: Path, ignored: Ignored) -> Iterator[str]:
    # If a folder is ignored but named itself, its files are sent, except those ignored within it.
    named = root.relative_to(folder).as_posix()
    base = root if named != "." and ignored(named, is_folder=True) else folder

    def is_ignored(path: Path, is_folder: bool) -> bool:
        return ignored(path.relative_to(base).as_posix(), is_folder=is_folder)

    for place, folders, files in os.walk(root):
        here = Path(place)
        inside = [name for name in folders if not is_ignored(here / name, True)]
        for name in inside:
            if (here / name).is_symlink():
                raise BundleNotSendable(
                    f"{(here / name).relative_to(folder)} is a link to a folder.",
                    f"Name it itself with --with, or in {IGNORE_FILE}.",
                )
        if ignored.whole_folders:
            folders[:] = inside
        paths = (here / name for name in files)
        yield from (path.relative_to(folder).as_posix() for path in paths if not is_ignored(path, False))


def _sendable(path: str, folder: Path) -> str:
    shown = path.encode(errors="surrogateescape").decode(errors="replace")
    if not (folder / path).is_file():
        raise BundleNotSendable(
            f"{shown} is no file (a link that leads nowhere?).", f"Name it in {IGNORE_FILE}."
        )
    try:
        return relative_path(path)
    except ValueError as error:
        raise BundleNotSendable(f"{shown}: a name like this cannot travel ({error}).") from error


def _too_large(sizes: dict[str, int], limit_bytes: int) -> BundleNotSendable:
    largest = sorted(sizes, key=lambda path: -sizes[path])[:_LARGEST_SHOWN]
    text = ", ".join(f"{path} ({readable_size(sizes[path])})" for path in largest)
    return BundleNotSendable(
        f"--with names {len(sizes)} files, {readable_size(sum(sizes.values()))}; at most {_FILES_LIMIT} and "
        f"{readable_size(limit_bytes)} are allowed (c.Distribute.bundle_limit_bytes). The largest: {text}.",
        f"Leave some out with {IGNORE_FILE}, or bring them once as a data set: %distribute data push.",
    )


# The file `.minicluster-ignore`: which files of a folder are not sent, as patterns of gitignore.


IGNORE_FILE = ".minicluster-ignore"
_ALWAYS = (".git/", "__pycache__/", ".ipynb_checkpoints/", IGNORE_FILE)


class IgnoreFileUnreadable(MiniclusterError):
    """The ignore file cannot be read."""


class Ignored:
    """Tells which paths are ignored, relative to the folder with the ignore file."""

    def __init__(self, lines: tuple[str, ...] = ()) -> None:
        # Imported here: most cells send no files.
        from pathspec import GitIgnoreSpec

        try:
            self._spec = GitIgnoreSpec.from_lines((*_ALWAYS, *lines))
        except (re.error, ValueError) as error:
            raise IgnoreFileUnreadable(
                f"{IGNORE_FILE}: {error}.", "Its lines are those of gitignore."
            ) from None
        self.whole_folders = not any(pattern.include is False for pattern in self._spec.patterns)
        """Whether no line with `!` includes again a part of an ignored folder."""

    @classmethod
    def beside(cls, folder: Path) -> Ignored:
        """Read the ignore file of a folder, if it has one."""
        try:
            return cls(tuple((folder / IGNORE_FILE).read_text("utf-8").splitlines()))
        except FileNotFoundError:
            return cls()
        except UnicodeDecodeError:
            raise IgnoreFileUnreadable(f"{folder / IGNORE_FILE} is not UTF-8.", "Save it as UTF-8.") from None

    def __call__(self, path: str, *, is_folder: bool) -> bool:
        return self._spec.match_file(f"{path}/" if is_folder else path)
