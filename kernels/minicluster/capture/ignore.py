"""The file `.minicluster-ignore`: what of a named folder stays here, in gitignore's simple forms."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from minicluster.errors import MiniclusterError

IGNORE_FILE = ".minicluster-ignore"
_ALWAYS = (".git/", "__pycache__/", ".ipynb_checkpoints/", IGNORE_FILE)


class IgnoreFileUnreadable(MiniclusterError):
    """The ignore file is not text in UTF-8."""


@dataclass(frozen=True)
class _Rule:
    """One line. keeps: it began with !. folders: it ended with /, and is about folders alone."""

    pattern: re.Pattern[str]
    keeps: bool
    folders: bool


class Ignored:
    """Tells which paths, relative to the folder with the file, stay here; the last line that fits counts."""

    def __init__(self, lines: tuple[str, ...] = ()) -> None:
        self._rules = [rule for line in (*_ALWAYS, *lines) if (rule := _rule(line))]

    @classmethod
    def beside(cls, folder: Path) -> Ignored:
        """Read the folder's ignore file, if it has one."""
        try:
            return cls(tuple((folder / IGNORE_FILE).read_text("utf-8").splitlines()))
        except FileNotFoundError:
            return cls()
        except UnicodeDecodeError:
            raise IgnoreFileUnreadable(
                f"{folder / IGNORE_FILE} is not in UTF-8.", "Save it again so."
            ) from None

    def __call__(self, path: str, *, is_folder: bool) -> bool:
        ignored = False
        for rule in self._rules:
            if (is_folder or not rule.folders) and rule.pattern.fullmatch(path):
                ignored = not rule.keeps
        return ignored


def _rule(line: str) -> _Rule | None:
    """Read a line: comments and empty ones say nothing."""
    text = re.sub(r"(?<!\\)\s+$", "", line)
    if not text or text.startswith("#"):
        return None
    keeps, text = text.startswith("!"), text.removeprefix("!")
    folders, text = text.endswith("/"), text.rstrip("/")
    # With a slash at its start or inside a pattern belongs to the folder of the file; else to any below.
    anywhere = "(?:.*/)?" if "/" not in text else ""
    return _Rule(_pattern(anywhere, text.lstrip("/")), keeps, folders)


def _pattern(before: str, text: str) -> re.Pattern[str]:
    """Compile a pattern with *, **, ?, [...] and backslashes; what is none stands for itself."""
    parts = re.findall(r"\*\*/|/\*\*$|\*+|\?|\[!?\]?[^\]]*\]|\\.|.", text, re.DOTALL)
    try:
        return re.compile(before + "".join(map(_part, parts)), re.DOTALL)
    except re.error:
        return re.compile(before + re.escape(text), re.DOTALL)


def _part(part: str) -> str:
    simple = {"**/": "(?:.*/)?", "/**": "/.*", "?": "[^/]"}
    if part in simple:
        return simple[part]
    if part.startswith("*"):
        return "[^/]*"
    if part.startswith("[") and len(part) > 2:
        inside = part[1:-1].replace("\\", "\\\\")
        return f"[^/{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return re.escape(part.removeprefix("\\") if len(part) > 1 else part)
