"""A machine's control group, which freezes all its processes together."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from .processes import LabError, wait_for

_ROOT = Path("/sys/fs/cgroup")


class ControlGroup:
    """A cgroup: in the freezer hierarchy of version 1, or in version 2. Containers have groups below it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._is_v2 = (_ROOT / "cgroup.controllers").exists()
        self._folder = (_ROOT if self._is_v2 else _ROOT / "freezer") / name.strip("/")

    @property
    def members(self) -> Path:
        """The file to which the machine's own processes are added; containers have sibling groups."""
        return self._folder / "engine" / "cgroup.procs"

    def make(self) -> None:
        """Create the group if it is missing."""
        self.members.parent.mkdir(parents=True, exist_ok=True)

    def below(self) -> set[str]:
        """Return the groups below this one, in all hierarchies."""
        tops = [_ROOT] if self._is_v2 else list(_ROOT.iterdir())
        folders = [top / self.name.strip("/") for top in tops]
        return {str(group.relative_to(top)) for top in folders for group in _below(top)}

    def freeze(self) -> None:
        """Freeze all processes."""
        if self._is_v2:
            (self._folder / "cgroup.freeze").write_text("1")
            events = self._folder / "cgroup.events"
            wait_for(lambda: "frozen 1" in events.read_text(), f"{self.name} to freeze", 60)
        else:
            state = self._folder / "freezer.state"
            wait_for(lambda: _frozen_v1(state), f"{self.name} to freeze", 180)

    def thaw(self) -> None:
        """Thaw all processes, including those of a container that was paused by itself."""
        file, word = ("cgroup.freeze", "0") if self._is_v2 else ("freezer.state", "THAWED")
        for folder in (self._folder, *_below(self._folder)):
            if (folder / file).exists():
                try:
                    (folder / file).write_text(word)
                except OSError:  # The group ended after its parents were thawed.
                    if (folder / file).exists():
                        raise

    def kill(self) -> None:
        """Kill the processes of this group itself; frozen ones die without running again."""
        for pid in (self._folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        self.thaw()

    def remove(self) -> None:
        """Remove the group and all below it, in each hierarchy. Its processes must have ended."""
        for hierarchy in [_ROOT] if self._is_v2 else _ROOT.iterdir():
            top = hierarchy / self.name.strip("/")
            if top.is_dir():
                wait_for(lambda top=top: _remove(top), f"{top} to become empty", 60)


def _frozen_v1(state: Path) -> bool:
    """Try to freeze a group; return whether all of it is frozen. If not, thaw it for a moment.

    Version 1 freezes processes one by one. A process that waits for a frozen one (for example for a child to
    start) never freezes; one that waits for its disk freezes when the disk is done.
    """
    state.write_text("FROZEN")
    try:
        wait_for(lambda: state.read_text().strip() == "FROZEN", "the freezer", 5)
    except LabError:
        state.write_text("THAWED")
        return False
    return True


def _below(top: Path) -> list[Path]:
    """Return the groups of a tree. Containers' groups come and go meanwhile; Path.rglob() would raise."""
    return [Path(folder, name) for folder, names, _ in os.walk(top) for name in names]


def _remove(top: Path) -> bool:
    """Remove a tree of groups; return whether it is gone. A group is busy until its processes are reaped."""
    try:
        for group in sorted(_below(top), key=lambda path: len(path.parts), reverse=True):
            group.rmdir()
        top.rmdir()
    except OSError:
        return not top.exists()
    return True
