"""Starting the parts, beside each other where they do not disturb each other, and waiting for them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from .parts import BESIDE, IN_TURN, LINTERS
from .results import OTHERS_ENDED, TREE, junit_file, log_file

WAIT_FOR_ENV = "MINICLUSTER_TESTS_WAIT_FOR"
"""A file; tests that are marked `alone` begin when it is there (tests/conftest.py)."""
_NO_TESTS = 5
"""pytest's exit code where nothing was selected."""


@dataclass
class Run:
    """A part under way. cpu_s: of its processes, once it has ended; what it left to others is not counted."""

    name: str
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def wait(self) -> int:
        """Wait for its end; return the exit code."""
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.wall_s = time.monotonic() - self.began
        self.cpu_s = usage.ru_utime + usage.ru_stime
        return self.process.returncode

    def end(self) -> None:
        """Ask it to end and to clear up, if it still runs."""
        if self.process.returncode is None:
            self.process.terminate()
            self.process.wait()


class Runs:
    """All parts of one call of `./test`; as a context manager, it ends what an error left running."""

    def __init__(self, pytest_words: Sequence[str]) -> None:
        self.failed: list[str] = []
        self._pytest_words = list(pytest_words)
        self._runs: list[Run] = []

    def __enter__(self) -> Runs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run in self._runs:
            run.end()

    def whole_part(self, part: str) -> None:
        """Run all tests of a part."""
        self._in_turn(part, self._pytest(part, part))

    def everything(self, *, full: bool) -> None:
        """Run the linters and the parts: the gate's tests only, or all of them."""
        chosen = "" if full else "not full"
        beside = self._start_beside(chosen)
        for name, words in LINTERS.items():
            self._in_turn(name, words)
        for part in IN_TURN:
            self._in_turn(part, self._pytest(part, part, chosen, "not alone"))
        if full:
            self._in_turn("lab-apart", self._pytest("lab-apart", BESIDE, "apart"))
        OTHERS_ENDED.touch()
        self._end_beside(beside)
        for part in IN_TURN:
            self._in_turn(f"{part}-alone", self._pytest(f"{part}-alone", part, chosen, "alone"))

    def times(self) -> str:
        """Return a line for each part: its time, and how much of that it had the processor."""
        rows = [f"{run.name:16} {run.wall_s:7.0f} s {run.cpu_s:9.0f} s" for run in self._runs if run.wall_s]
        return "\n".join([f"{'part':16} {'time':>9} {'processor':>11}", *rows])

    def _pytest(self, name: str, part: str, *chosen: str) -> list[str]:
        marked = " and ".join(filter(None, chosen))
        words = [sys.executable, "-m", "pytest", f"tests/{part}", f"--junitxml={junit_file(name)}"]
        return [*words, *(["-m", marked] if marked else []), *self._pytest_words]

    def _in_turn(self, name: str, words: Sequence[str]) -> None:
        print(f"\n== {name}", flush=True)
        run = Run(name, subprocess.Popen(words, cwd=TREE))
        self._runs.append(run)
        self._note(run)

    def _start_beside(self, chosen: str) -> Run:
        """Start the part that runs beside the others; its words are shown at its end."""
        environment = {**os.environ, WAIT_FOR_ENV: str(OTHERS_ENDED)}
        with log_file(BESIDE).open("wb") as log:
            words = self._pytest(BESIDE, BESIDE, chosen, "not apart")
            process = subprocess.Popen(
                words, cwd=TREE, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        run = Run(BESIDE, process)
        self._runs.append(run)
        return run

    def _end_beside(self, run: Run) -> None:
        print(f"\n== {run.name} (it ran beside the others)", flush=True)
        self._note(run)
        print(log_file(run.name).read_text(errors="replace"), flush=True)

    def _note(self, run: Run) -> None:
        code = run.wait()
        if code == _NO_TESTS and not self._needs_tests(run):
            self._runs.remove(run)
        elif code:
            self.failed.append(run.name)

    def _needs_tests(self, run: Run) -> bool:
        """Whether a part without any test is an error: an empty rest, or a choice by name, is none."""
        return not (self._pytest_words or run.name.endswith("-alone") or run.name == "chaos")
