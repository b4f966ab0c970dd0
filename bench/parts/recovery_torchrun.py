"""torchrun's side of bench/recovery.py: three agents, as on three nodes, with the default rendezvous."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import psutil
from parts.recovery_lives import NEVER_S, Recovery, parse_steps, strike, until

PEER = Path(__file__).parents[1] / "peers" / "recovering.py"
NODES = 3


def recover(folder: Path, fault: str, every: int, *, first: bool) -> Recovery:
    """Strike one of three agents with its rank; `first`: the agent that hosts the rendezvous."""
    with training(folder, every) as agents:
        until(lambda: len(_steps(folder)) > 2 * every, 120.0, "torchrun's first steps")
        before = _steps(folder)
        victim = agents[0 if first else -1]
        struck_at = strike([victim, *victim.children(recursive=True)], fault)
        with suppress(TimeoutError):
            until(lambda: _goes_on(folder, before, struck_at), NEVER_S, "")
        return _found(fault, first, folder, struck_at)


@contextmanager
def training(folder: Path, every: int) -> Iterator[list[psutil.Process]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [sys.executable, "-m", "torch.distributed.run", f"--nnodes=2:{NODES}", "--nproc-per-node=1"]
    arguments += ["--max-restarts=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", str(PEER)]
    arguments += [str(folder / "state"), str(every)]
    agents = []
    for number in range(NODES):
        with (folder / f"agent-{number}.log").open("wb") as log:
            agents.append(subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT))
        if not number:
            time.sleep(3.0)  # The first agent hosts the rendezvous.
    try:
        yield [psutil.Process(agent.pid) for agent in agents]
    finally:
        for agent in agents:
            _end(agent)


def _end(agent: subprocess.Popen[bytes]) -> None:
    """End an agent and all processes that it started."""
    processes = []
    with suppress(psutil.Error):
        whole = psutil.Process(agent.pid)
        processes = [whole, *whole.children(recursive=True)]
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    agent.wait(30)


def _steps(folder: Path) -> list[tuple[int, float]]:
    texts = (log.read_text(errors="replace") for log in sorted(folder.glob("agent-*.log")))
    return sorted((pair for text in texts for pair in parse_steps(text)), key=lambda pair: pair[1])


def _goes_on(folder: Path, before: list[tuple[int, float]], struck_at: float) -> bool:
    return any(_again(_steps(folder), struck_at))


def _again(steps: list[tuple[int, float]], struck_at: float) -> list[tuple[int, float]]:
    """Return the steps of the attempt after the fault: it starts where step numbers are out of sequence."""
    for (step, _), (following, at) in pairwise(steps):
        if at > struck_at and following <= step:
            return [(following, at)]
    later = [(step, at) for step, at in steps if at > struck_at + 5.0]
    return later[:1]


def _found(fault: str, first: bool, folder: Path, struck_at: float) -> Recovery:
    steps = _steps(folder)
    again = _again(steps, struck_at)
    if not again:
        return Recovery(fault, first, NEVER_S, 0, never=True)
    step, at = again[0]
    lost = max(number for number, when in steps if when < at) + 1 - step
    return Recovery(fault, first, at - struck_at, lost)
