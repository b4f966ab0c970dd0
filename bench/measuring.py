"""What looking at a training costs it: mc.log in each step, and the counters of step times.

Each call is timed in a process whose records another process reads, as an agent does: in a row, and once in
each step of 10 ms of matrix products, where the caches have other things in them. One line per target.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import time
from collections.abc import Callable

import torch
from parts.targets import Target, close

import minicluster as mc
from minicluster.train.metrics import sending
from minicluster.train.metrics.step_times import StepClock

CALL_BOUND_US = 20.0
STEP_S = 0.010
SHARE_BOUND_PERCENT = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    reader = records_reader()
    loss = torch.tensor(0.25)
    in_a_row = {
        "mc_log_numbers_us": timed(lambda step: mc.log(step=step, loss=0.123456 * step), options.calls),
        "mc_log_tensor_us": timed(lambda step: mc.log({"train": {"loss": loss}}, step=step), options.calls),
    }
    clock, optimizer = StepClock(), torch.optim.SGD([torch.zeros(1)])
    in_a_row["step_times_us"] = timed(lambda _: clock.stepped(optimizer), options.calls)
    share = 100 * in_steps(lambda step: mc.log(step=step, loss=loss, accuracy=0.5), options.steps) / STEP_S
    reader.kill()
    close(
        [
            *(Target(name, value, CALL_BOUND_US) for name, value in in_a_row.items()),
            Target("mc_log_share_of_10_ms_percent", share, SHARE_BOUND_PERCENT),
        ]
    )


def records_reader() -> subprocess.Popen[bytes]:
    """Have a process read this one's records, as the agent does in a job."""
    read_fd, write_fd = os.pipe()
    reader = subprocess.Popen(["cat"], stdin=read_fd, stdout=subprocess.DEVNULL)
    os.close(read_fd)
    os.environ["MINICLUSTER_RECORDS_FD"] = str(write_fd)
    sending.begin()
    return reader


def timed(call: Callable[[int], None], calls: int) -> float:
    """Return the mean of single calls in microseconds, with the writes that some of them do."""
    for step in range(100):
        call(step)
    return 1e6 * statistics.mean(once(call, step) for step in range(calls))


def in_steps(call: Callable[[int], None], steps: int) -> float:
    """Return the mean seconds of a call at the end of a step of STEP_S."""
    torch.set_num_threads(1)
    matrix = torch.rand(128, 128)
    found: list[float] = []
    for step in range(steps):
        until = time.perf_counter() + STEP_S
        while time.perf_counter() < until:
            matrix = torch.mm(matrix, matrix).clamp(0, 1)
        found.append(once(call, step))
    return statistics.mean(found)


def once(call: Callable[[int], None], step: int) -> float:
    """Return a call's seconds of CPU time: on a busy machine, wall-clock time has that of others in it."""
    began = time.thread_time()
    call(step)
    return time.thread_time() - began


if __name__ == "__main__":
    main()
