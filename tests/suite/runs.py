"""Runs the parts in parallel lanes, and waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .parts import EMPTY_IN_THE_GATE, LAB, LAB_APART, LANES, LINTERS, SLURM
from .results import OTHERS_ENDED, TREE, junit_file, log_file

WAIT_FOR_ENV = "MINICLUSTER_TESTS_WAIT_FOR"
"""The variable with a file's path; tests marked `alone` start once the file exists (tests/conftest.py)."""
_NO_TESTS = 5
"""pytest's exit code if no test was selected."""


@dataclass(frozen=True)
class PartProgram:
    """A program of a lane. may_be_empty: selecting no test is not a failure."""

    name: str
    words: list[str]
    may_be_empty: bool = False


@dataclass(frozen=True)
class EndedPart:
    """A part that has ended. cpu_s: CPU time of its processes, without the lab's machines."""

    name: str
    wall_s: float
    cpu_s: float


class Runs:
    """All programs of one call of `./test`."""

    def __init__(self, pytest_words: Sequence[str]) -> None:
        self.failed: list[str] = []
        self._ended: list[EndedPart] = []
        self._pytest_words = list(pytest_words)
        self._running: dict[str, int] = {}
        self._lock = threading.Lock()
        self._goes_on = True

    def whole_part(self, part: str) -> None:
        """Run all tests of a part and show its output as it is printed; nothing runs in parallel."""
        OTHERS_ENDED.touch()
        self._run(self._pytest(part, [f"tests/{part}"]), shown_at_once=True)

    def everything(self, *, full: bool) -> None:
        """Run the linters and the parts: only the gate's tests, or all tests."""
        chosen = "" if full else "not full"
        lanes = [[self._part(part, chosen, "not alone") for part in lane] for lane in LANES]
        lanes[1][:0] = [PartProgram(name, arguments) for name, arguments in LINTERS.items()]
        beside_lab = lanes
        with ThreadPoolExecutor(len(lanes) + 1) as pool:
            try:
                if full:
                    # All of the lab beside them is too much for two cores: a busy hub would count as dead.
                    self._lanes(pool, lanes)
                    beside_lab = [[self._pytest(LAB_APART, [f"tests/{LAB}"], "apart")]]
                lab = pool.submit(self._lane, [self._part(LAB, chosen, "not apart")])
                self._lanes(pool, beside_lab)
                OTHERS_ENDED.touch()
                lab.result()
            except BaseException as error:
                self._end_all(error)
                raise
        if full:
            self._lane([self._part(SLURM)])
        self._lane(self._alone(chosen))

    def times(self) -> str:
        """Return a line for each part, with its elapsed time and its CPU time."""
        rows = [f"{one.name:16} {one.wall_s:7.0f} s {one.cpu_s:9.0f} s" for one in self._ended]
        return "\n".join([f"{'part':16} {'time':>9} {'processor':>11}", *rows])

    def _part(self, part: str, *chosen: str) -> PartProgram:
        return self._pytest(part, [f"tests/{part}"], *chosen, may_be_empty=part in EMPTY_IN_THE_GATE)

    def _alone(self, chosen: str) -> Iterable[PartProgram]:
        """Yield a program for each part's tests marked `alone`; the lab's have already run."""
        for part in (part for lane in LANES for part in lane):
            files = [str(path) for path in (TREE / "tests" / part).rglob("test_*.py") if _has_alone(path)]
            if files:
                yield self._pytest(f"{part}-alone", sorted(files), chosen, "alone", may_be_empty=True)

    def _pytest(
        self, name: str, paths: Sequence[str], *chosen: str, may_be_empty: bool = False
    ) -> PartProgram:
        marked = " and ".join(filter(None, chosen))
        arguments = [sys.executable, "-m", "pytest", *paths, f"--junitxml={junit_file(name)}"]
        arguments += [*(["-m", marked] if marked else []), *self._pytest_words]
        return PartProgram(name, arguments, may_be_empty or bool(self._pytest_words))

    def _lanes(self, pool: ThreadPoolExecutor, lanes: Iterable[Iterable[PartProgram]]) -> None:
        """Run lanes beside each other, and wait for them."""
        for lane in [pool.submit(self._lane, lane) for lane in lanes]:
            lane.result()

    def _lane(self, steps: Iterable[PartProgram]) -> None:
        for step in steps:
            if self._goes_on:
                self._run(step)

    def _run(self, step: PartProgram, *, shown_at_once: bool = False) -> None:
        """Run a program to its end; show its output at the end, since others run meanwhile."""
        print(f"== {step.name}{'' if shown_at_once else ' begins'}", flush=True)
        began = time.monotonic()
        with log_file(step.name).open("wb") as log:
            output = None if shown_at_once else log
            process = subprocess.Popen(
                step.words,
                cwd=TREE,
                env={**os.environ, WAIT_FOR_ENV: str(OTHERS_ENDED)} if step.name == LAB else None,
                stdin=None if shown_at_once else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._running[step.name] = process.pid
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException as error:
            self._end_all(error)
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        with self._lock:
            del self._running[step.name]
            self._note(step, process.returncode, time.monotonic() - began, usage.ru_utime + usage.ru_stime)

    def _note(self, step: PartProgram, code: int, wall_s: float, cpu_s: float) -> None:
        if code == _NO_TESTS and step.may_be_empty:
            return
        self._ended.append(EndedPart(step.name, wall_s, cpu_s))
        if code:
            self.failed.append(step.name)
        print(f"\n== {step.name}, {wall_s:.0f} s", flush=True)
        print(log_file(step.name).read_text(errors="replace"), flush=True)

    def _end_all(self, error: BaseException) -> None:
        """Send all programs SIGTERM, so that they clean up; their lanes wait for them."""
        self._goes_on = False
        if isinstance(error, KeyboardInterrupt):
            return  # the terminal has sent SIGINT to all; after a second signal they would not clean up
        for pid in list(self._running.values()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def _has_alone(path: Path) -> bool:
    return "pytest.mark.alone(" in path.read_text()
