"""Processes that outlive their parent, identified by id and start time, never by name."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

# The shell's stat line has its id and start time; exec changes neither.
_WITH_RECORD = 'read -r line </proc/$$/stat && echo "$line" >"$0" && exec "$@"'


class LabError(Exception):
    """An operation of the lab failed."""


def run(*words: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a program to its end and return its output."""
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        output = (done.stderr or done.stdout).strip()
        raise LabError(f"`{' '.join(map(str, words))}` ended with {done.returncode}: {output[-2000:]}")
    return done.stdout


def start(
    words: Sequence[str | Path], record: Path, log: Path, environment: Mapping[str, str] | None = None
) -> None:
    """Start a detached program in its own session, and record its identity in `record`."""
    record.unlink(missing_ok=True)
    command = ["setsid", "--fork", "sh", "-c", _WITH_RECORD, str(record), *map(str, words)]
    with log.open("ab") as output:
        subprocess.run(
            command,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=environment,
        )
    wait_for(lambda: record.exists() and record.stat().st_size, f"{words[0]} to start", 60)


def process_of(record: Path) -> int | None:
    """Return the id of the recorded process if that same process still runs."""
    try:
        pid, start = _identity(record.read_text())
        now = Path(f"/proc/{pid}/stat").read_text()
        state = now.rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return None
    return pid if _identity(now) == (pid, start) and state not in "ZX" else None


def own_line() -> str:
    """Return this process's stat line, which is the content of a record."""
    return Path("/proc/self/stat").read_text()


def end(
    record: Path,
    number: int = signal.SIGKILL,
    then: Callable[[], object] = lambda: None,
    within_s: float = 30,
) -> None:
    """Send the recorded process a signal, call `then`, and wait until the process has ended."""
    pid = process_of(record)
    if pid is not None:
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                _end(handle, pid, record, number)
                then()
                if not select.select([handle], [], [], within_s)[0]:
                    raise LabError(
                        f"process {pid} of {record} lives on, {within_s:g} s after signal {number}"
                    )
            finally:
                os.close(handle)
    record.unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    """Remove a folder with tens of thousands of files: shutil takes several times as long as rm."""
    run("rm", "--recursive", "--force", "--one-file-system", folder)


def wait_for(is_so: Callable[[], object], what: str, within_s: float, step_s: float = 0.02) -> None:
    """Wait until `is_so` is true."""
    until = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > until:
            raise LabError(f"waited {within_s:g} s in vain for {what}")
        time.sleep(step_s)


def _end(handle: int, pid: int, record: Path, number: int) -> None:
    # The handle refers to one process; the record shows whether it is still the intended one.
    if process_of(record) == pid:
        signal.pidfd_send_signal(handle, number)


def _identity(line: str) -> tuple[int, int]:
    """Return a process's id and its start time in ticks."""
    return int(line.split(maxsplit=1)[0]), int(line.rpartition(")")[2].split()[19])
