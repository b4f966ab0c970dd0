"""`python -m minicluster.runtime.step`: runs an agent for an engine that can hand over only standard input.

A batch system shows the arguments and the environment of its jobs to all users. So the engine writes one
JSON object to standard input: `token`, `environment` (variables by their names), `folder` (where the agent
runs, and its home; "" for the user's own) and `begun` (a line that tells the engine that this program runs).
This process is the agent's parent: it passes SIGTERM on, and leaves neither processes nor files afterwards.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from minicluster.runtime import processes, system
from minicluster.runtime.settings import TOKEN_FILE

AGENT = "minicluster.runtime.agent"
_GRACE_S = 2
_YOUNG_S = 60.0
"""A folder of this age may still be made by another step."""
_FOLDER = re.compile(r"minicluster-\d+-[0-9a-f]{16}")
_OF_THE_STEP = ("SLURM", "PMI")
_KEPT = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_CONF")
_SIGNALLED = 128
"""A shell's way to tell of a signal: exit code 128 and its number."""


@dataclass(frozen=True)
class StepInput:
    """What the engine hands over."""

    environment: Mapping[str, str]
    token: str = ""
    folder: str = ""
    begun: str = ""

    @property
    def scratch(self) -> Path:
        return Path(self.environment["MINICLUSTER_SCRATCH"])

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that only the task's user may enter: its scratch folder, and that around its memory."""
        memory = Path(self.environment["MINICLUSTER_MEMORY"]).parent
        return (self.scratch, memory) if memory.parent.is_dir() else (self.scratch,)


def environment_of(given: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the agent's environment.

    A library that finds the variables of a batch system's step (Lightning does) would take its world from
    there: one task on one node.
    """
    kept = {
        name: value for name, value in inherited.items() if name in _KEPT or not name.startswith(_OF_THE_STEP)
    }
    with suppress(KeyError):  # a user id without a name
        user = pwd.getpwuid(os.getuid())
        kept.setdefault("HOME", user.pw_dir)
        kept.setdefault("USER", user.pw_name)
    return kept | dict(given)


def make_private(folder: Path) -> int:
    """Make a folder for this user only, and lock it as long as this process lives; return the lock.

    One that a killed task left is replaced. Raises OSError.
    """
    with suppress(FileNotFoundError):
        if folder.lstat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700, parents=True)
    return _locked(folder)


def clear_left_behind(parent: Path, now: float) -> None:
    """Remove the folders of this user's tasks that were killed with all their processes: they are not locked.

    Snapshots in memory would stay there until the node restarts.
    """
    for folder in parent.glob("minicluster-*"):
        with suppress(OSError):
            status = folder.lstat()
            ours = status.st_uid == os.getuid() and _FOLDER.fullmatch(folder.name)
            if ours and now - status.st_mtime > _YOUNG_S:
                os.close(_locked(folder))
                shutil.rmtree(folder)


def _locked(folder: Path) -> int:
    """Lock a folder; return the open file that holds the lock. Raises OSError if another process has it."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def run(given: StepInput) -> int:
    """Run the agent to its end; return its exit code. Raises OSError."""
    system.adopt_orphans()
    for folder in given.folders:
        clear_left_behind(folder.parent, time.time())
        make_private(folder)
    token = given.scratch / "token"
    token.touch(mode=0o600)
    token.write_text(given.token)
    environment = environment_of(given.environment, os.environ) | {TOKEN_FILE: str(token)}
    if os.access(given.folder, os.X_OK):
        environment["HOME"] = given.folder
    home = environment.get("HOME", "")
    agent = subprocess.Popen(
        [sys.executable, "-P", "-m", AGENT],
        env=environment,
        cwd=home if os.access(home, os.X_OK) else given.scratch,
        stdin=subprocess.DEVNULL,
    )
    _pass_on_signals(agent)
    code = agent.wait()
    asyncio.run(processes.clear_below(os.getpid()))
    return code if code >= 0 else _SIGNALLED - code


def clear(given: StepInput) -> None:
    """Remove the files of a task that has ended."""
    for folder in given.folders:
        shutil.rmtree(folder, ignore_errors=True)


def _pass_on_signals(agent: subprocess.Popen[bytes]) -> None:
    """End the agent on SIGTERM; kill it if it takes longer than the grace."""

    def end(_number: int, _frame: object) -> None:
        agent.terminate()
        signal.alarm(_GRACE_S)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    signal.signal(signal.SIGALRM, lambda *_: agent.kill())


def _end(number: int, _frame: object) -> None:
    """End before there is an agent; main() still removes the files."""
    sys.exit(_SIGNALLED + number)


def main() -> int:
    signal.signal(signal.SIGTERM, _end)
    given = StepInput(**json.loads(sys.stdin.buffer.read()))
    if given.begun:
        print(given.begun, flush=True)  # noqa: T201 - the engine reads it
    try:
        return run(given)
    except OSError as error:
        sys.stderr.write(f"the agent cannot be started here: {error}\n")
        return 1
    finally:
        clear(given)


if __name__ == "__main__":
    sys.exit(main())
