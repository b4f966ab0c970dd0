"""A machine: its own namespaces, a control group and a first process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from . import first_process
from .cgroups import ControlGroup
from .processes import LabError, end, process_of, start, wait_for

# A process joins the machine's control group before it enters the machine.
_IN_GROUP = 'echo $$ >"$0" && exec "$@"'


class Machine:
    """Processes with their own hostname, /run, mounts and process ids; they all end together."""

    def __init__(self, folder: Path, hostname: str, group: str, has_network: bool = True) -> None:
        """has_network: False: the machine shares the root namespace's network."""
        self.folder = folder
        self.hostname = hostname
        self.group = ControlGroup(group)
        self._has_network = has_network
        self.record = folder / "first"

    @property
    def is_on(self) -> bool:
        return process_of(self.record) is not None

    @property
    def root(self) -> Path:
        """The machine's file tree as seen from outside."""
        return Path(f"/proc/{self.first()}/root")

    def first(self) -> int:
        """Return the id of the first process."""
        pid = process_of(self.record)
        if pid is None:
            raise LabError(f"{self.hostname} is switched off; power_on() starts it")
        return pid

    def power_on(self) -> None:
        """Start the first process only."""
        if self.is_on:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.record.unlink(missing_ok=True)
        self.group.make()
        unshare = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--"]
        unshare[1:1] = ["--net"] if self._has_network else []
        script = [sys.executable, "-I", first_process.__file__]
        boot = ["sh", "-c", _IN_GROUP, str(self.group.members), *unshare, *script]
        log = self.folder / "first.log"
        start([*boot, str(self.folder), self.hostname], self.folder / "outer", log)
        try:
            wait_for(self.record.exists, f"{self.hostname} to start", 60)
        except LabError as error:
            raise LabError(f"{error}; {log}: {log.read_text()[-2000:]}") from None

    def power_off(self) -> None:
        """Kill all processes of the machine at once, without notice."""
        # A frozen process dies when it is thawed; killing the first process kills all others.
        end(self.record, then=self.group.thaw)
        end(self.folder / "outer")
        self.group.remove()

    def inside(self, *words: str | Path) -> list[str]:
        """Return the command that runs `words` in this machine."""
        enter = ["nsenter", f"--target={self.first()}", "--mount", "--uts", "--ipc", "--net", "--pid", "--"]
        return ["sh", "-c", _IN_GROUP, str(self.group.members), *enter, *map(str, words)]

    def run(
        self, *words: str | Path, environment: Mapping[str, str], within_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine to its end."""
        return subprocess.run(
            self.inside(*words),
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
            env=dict(environment),
            cwd="/",
        )
