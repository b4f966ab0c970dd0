"""Response times and memory of the job service under the load of a busy lab, beside those when idle.

The load: 200 users with an open page, 50 notebooks that follow a job, 500 queued jobs, and 20 running gangs,
whose agents report and print a line each second, as real ones do, but train nothing. The service, with a real
store, and its clients are two processes; logins and machines are simulated (tests/service/api). Prints a
table and one line per target.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
import psutil
from parts.load_calls import PAGES, TASKS, Calls
from parts.targets import Target, close

HERE = Path(__file__).resolve().parent
GANGS = 20
SAMPLES = 100
PAUSE_S, SETTLE_S = 0.1, 5.0
MEDIAN_BOUND, SLOWEST_BOUND, MEMORY_BOUND, CPU_BOUND_PERCENT = 5.0, 10.0, 2.5, 80.0

T = TypeVar("T")


@dataclass
class Figures:
    """Measurements of the service in one state. Times in seconds, one per sample."""

    times: dict[str, list[float]] = field(default_factory=dict)
    memory_mb: float = 0.0
    cpu_percent: float = 0.0

    def p(self, what: str, percent: int) -> float:
        return statistics.quantiles(self.times[what], n=100, method="inclusive")[percent - 1]

    async def timed(self, what: str, work: Awaitable[T]) -> T:
        """Await something and record how long it took."""
        began = time.perf_counter()
        result = await work
        self.times.setdefault(what, []).append(time.perf_counter() - began)
        return result


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with service() as (idle_service, url):
        idle = asyncio.run(measure(url, idle_service.pid))
    with service() as (busy_service, url), crowd(busy_service, url):
        time.sleep(SETTLE_S)
        busy = asyncio.run(measure(url, busy_service.pid))
    print(table(idle, busy))
    print()
    close(targets(idle, busy))


@contextmanager
def service() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a job service; yield its process and URL. Its further output is for the simulated agents."""
    command = [sys.executable, HERE / "parts" / "load_service.py", str(GANGS * TASKS), str(PAGES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as running:
        try:
            if not running.stdout or not (url := running.stdout.readline().decode().strip()):
                raise SystemExit("the service did not start")
            yield running, url
        finally:
            running.terminate()


@contextmanager
def crowd(running: subprocess.Popen[bytes], url: str) -> Iterator[None]:
    """Run all users' clients; check that they still run at the end."""
    command = [sys.executable, HERE / "parts" / "load_crowd.py", url]
    with subprocess.Popen(command, stdin=running.stdout, stdout=subprocess.PIPE, text=True) as users:
        try:
            if not users.stdout or users.stdout.readline().strip() != "ready":
                raise SystemExit("the users did not come")
            yield
            if users.poll() is not None:
                raise SystemExit("the users were sent away")
        finally:
            users.terminate()


async def measure(url: str, pid: int) -> Figures:
    """Time a user's requests one after the other; measure the service's process meanwhile."""
    figures, process = Figures(), psutil.Process(pid)
    async with httpx.AsyncClient(base_url=url, timeout=60, verify=False) as http:
        calls = Calls(url, http)
        began, before = time.monotonic(), sum(process.cpu_times()[:2])
        for number in range(SAMPLES):
            user = PAGES // 2 + number % (PAGES // 2)
            job = await figures.timed("submit", calls.submit(user))
            await figures.timed("page", calls.page(user))
            await figures.timed("stop", calls.stop(user, job))
            await asyncio.sleep(PAUSE_S)
        took_s = time.monotonic() - began
    figures.cpu_percent = 100 * (sum(process.cpu_times()[:2]) - before) / took_s
    figures.memory_mb = process.memory_info().rss / 1e6
    return figures


def table(idle: Figures, busy: Figures) -> str:
    rows = [f"{'':12}{'idle p50':>12}{'p99 ms':>10}{'busy p50':>12}{'p99 ms':>10}"]
    for what in idle.times:
        numbers = (1000 * one.p(what, percent) for one in (idle, busy) for percent in (50, 99))
        rows.append(
            f"{what:12}" + "".join(f"{n:>{w}.1f}" for n, w in zip(numbers, (12, 10, 12, 10), strict=True))
        )
    rows.append(f"{'memory MB':12}{idle.memory_mb:>12.0f}{'':10}{busy.memory_mb:>12.0f}")
    rows.append(f"{'% of a core':12}{idle.cpu_percent:>12.1f}{'':10}{busy.cpu_percent:>12.1f}")
    return "\n".join(rows)


def targets(idle: Figures, busy: Figures) -> list[Target]:
    found = []
    for what in idle.times:
        found.append(Target(f"load_{what}_p50_ratio", busy.p(what, 50) / idle.p(what, 50), MEDIAN_BOUND))
        found.append(Target(f"load_{what}_p99_ratio", busy.p(what, 99) / idle.p(what, 99), SLOWEST_BOUND))
    found.append(Target("load_memory_ratio", busy.memory_mb / idle.memory_mb, MEMORY_BOUND))
    found.append(Target("load_cpu_percent", busy.cpu_percent, CPU_BOUND_PERCENT))
    return found


if __name__ == "__main__":
    main()
