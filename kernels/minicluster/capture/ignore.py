"""The file `.minicluster-ignore`: gitignore's patterns of what stays here of a folder that is sent along."""

from __future__ import annotations

import re
from pathlib import Path

from minicluster.errors import MiniclusterError

IGNORE_FILE = ".minicluster-ignore"
_ALWAYS = (".git/", "__pycache__/", ".ipynb_checkpoints/", IGNORE_FILE)


class IgnoreFileUnreadable(MiniclusterError):
    """The ignore file is there and cannot be used."""


class Ignored:
    """Tells which paths, relative to the folder with the file, stay here."""

    def __init__(self, lines: tuple[str, ...] = ()) -> None:
        # Imported here: most cells send no files along.
        from pathspec import GitIgnoreSpec

        try:
            self._spec = GitIgnoreSpec.from_lines((*_ALWAYS, *lines))
        except (re.error, ValueError) as error:
            raise IgnoreFileUnreadable(
                f"{IGNORE_FILE}: {error}.", "Its lines are those of gitignore."
            ) from None
        self.whole_folders = not any(pattern.include is False for pattern in self._spec.patterns)
        """Whether nothing of an ignored folder is taken back by a later line."""

    @classmethod
    def beside(cls, folder: Path) -> Ignored:
        """Read the folder's ignore file, if it has one."""
        try:
            return cls(tuple((folder / IGNORE_FILE).read_text("utf-8").splitlines()))
        except FileNotFoundError:
            return cls()
        except UnicodeDecodeError:
            raise IgnoreFileUnreadable(f"{folder / IGNORE_FILE} is not UTF-8.", "Save it as UTF-8.") from None

    def __call__(self, path: str, *, is_folder: bool) -> bool:
        return self._spec.match_file(f"{path}/" if is_folder else path)
