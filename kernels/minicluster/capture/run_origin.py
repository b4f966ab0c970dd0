"""What a notebook tells of a cell that it submits: see RunOrigin. None of it may delay or fail a cell."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicluster.pickling.pickler import CountingFile, NotebookPickler, TargetLimits
from minicluster.pickling.refusal import type_name
from minicluster.wire import GitCommit, RunOrigin, SentName, Versions
from minicluster.wire.jobs import DIFFERING_PACKAGES, LINE_CHARS, SENT_NAMES
from minicluster.wire.limits import NAME_CHARS

_MEASURING_S = 0.1
"""For all names of a cell together: large objects of pure Python stay without a size."""
_GIT_S = 2.0
_WAIT_FOR_GIT_S = 0.5
_QUIET_GIT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


@dataclass(frozen=True)
class Submitted:
    """What is sent: names with their values, the namespace that they are from, what ranks can read."""

    names: Mapping[str, Any]
    namespace: dict[str, Any]
    target: TargetLimits


def run_origin(
    source: str,
    line: str,
    submitted: Submitted,
    commit: GitCommit | None,
    packages: Mapping[str, str],
    **more: Any,
) -> RunOrigin:
    """Return what to remember of a cell. packages: see RunOrigin. more: further fields of it."""
    chosen = sorted(packages)[:DIFFERING_PACKAGES]
    return RunOrigin(
        source=source,
        line=line[:LINE_CHARS],
        names=tuple(sent_names(submitted)),
        commit=commit,
        packages={name[:NAME_CHARS]: packages[name] for name in chosen},
        **more,
    )


def differing_versions(ours: Versions, theirs: Versions | None) -> dict[str, str]:
    """Return our versions of what the ranks have in another version."""
    if theirs is None:
        return {}
    here, there = ours.model_dump(), theirs.model_dump()
    return {name: here[name] for name in here if here[name] and here[name] != there[name]}


# The names that are sent, with the sizes of their pickles.


class _OutOfTime(Exception):
    """Measuring takes too long."""


class _TimedFile(CountingFile):
    """Counts bytes until a deadline."""

    def __init__(self, deadline: float) -> None:
        super().__init__(1 << 62)
        self._deadline = deadline

    def write(self, data: Any) -> int:
        if time.monotonic() > self._deadline:
            raise _OutOfTime
        return super().write(data)


def sent_names(submitted: Submitted) -> Iterator[SentName]:
    """Yield each name with its type, and with the size of its pickle as far as that is measured quickly.

    A second name of an object has no size.
    """
    deadline = time.monotonic() + _MEASURING_S
    seen: set[int] = set()
    for name, value in list(submitted.names.items())[:SENT_NAMES]:
        known = id(value) in seen
        seen.add(id(value))
        # Half of the remaining time for each, so that a large object leaves some for the others.
        until = (time.monotonic() + deadline) / 2
        size = None if known else _size_bytes(value, submitted, until)
        yield SentName(name=name[:NAME_CHARS], type=type_name(value)[:NAME_CHARS], size_bytes=size)


def _size_bytes(value: Any, submitted: Submitted, deadline: float) -> int | None:
    file = _TimedFile(deadline)
    if time.monotonic() > deadline:
        return None
    pickler = NotebookPickler(file, submitted.namespace, lambda used: False, submitted.target)
    # All names were pickled together already, but an object's own code may refuse a second time.
    with suppress(Exception):
        pickler.dump(value)
        return file.size
    return None


# The commit of the notebook's folder.


class CommitSearch:
    """Asks git about a folder in a thread, while the cell is packed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: GitCommit | None = None
        self._thread = threading.Thread(target=self._look, name="minicluster-git", daemon=True)
        self._thread.start()

    def commit(self, wait_s: float = _WAIT_FOR_GIT_S) -> GitCommit | None:
        """Return the commit; None outside of a repository, without git, or if git is slow."""
        self._thread.join(wait_s)
        return self._found

    def _look(self) -> None:
        with suppress(OSError, subprocess.SubprocessError, ValueError):
            commit, branch = self._git("rev-parse", "HEAD", "--abbrev-ref", "HEAD").split("\n")[:2]
            found = GitCommit(commit=commit, branch="" if branch == "HEAD" else branch[:NAME_CHARS])
            self._found = found
            # This reads all files of the repository, which may take long.
            changed = self._git("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
            self._found = found.model_copy(update={"changed": len(changed.splitlines())})

    def _git(self, *words: str) -> str:
        # A repository's own settings may name a program as file system monitor: it is not started.
        command = ["git", "-c", "core.fsmonitor=false", *words]
        done = subprocess.run(
            command,
            cwd=self._folder,
            env={**os.environ, **_QUIET_GIT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_S,
            check=True,
        )
        return done.stdout.decode("utf-8", "replace")
