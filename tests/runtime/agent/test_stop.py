"""Stop ends all ranks, whatever they do."""

from __future__ import annotations

import signal

import psutil
import pytest

from minicluster.wire import ErrorKind, StopMode
from minicluster_hub.support.processes import lives, signal_all

from ..cluster import Cluster, Run

EXCEPTION = 1
"""Exit code of a rank whose cell ended by a KeyboardInterrupt."""

IN_ALL_REDUCE = """
    import time, torch, torch.distributed as dist
    print("here")
    if dist.get_rank() != 0:
        dist.all_reduce(torch.ones(1))
    while True:
        time.sleep(0.1)
    """
ALL_IN_C = """
    import sys, threading, time, torch, torch.distributed as dist
    main = threading.get_ident()
    def say_it_when_native():
        while sys._current_frames()[main].f_code.co_name != "recv":
            time.sleep(0.05)
        time.sleep(0.5)
        print("here")
    threading.Thread(target=say_it_when_native, daemon=True).start()
    dist.recv(torch.ones(1), src=(dist.get_rank() + 1) % dist.get_world_size())
    """
SWALLOWED = """
    import time
    while True:
        try:
            print("here")
            time.sleep(600)
        except KeyboardInterrupt:
            pass
    """
DEAF = """
    import signal, time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("here")
    time.sleep(600)
    """


async def stop(run: Run, mode: StopMode) -> set[int | None]:
    """Stop a run while its ranks are busy; return what ended them."""
    await run.started()
    await run.stop(mode)
    await run.over()
    return {rank.exit_code for rank in run.attempt.ranks.values()}


@pytest.mark.parametrize(
    ("source", "ended_by", "or_by"),
    [
        (IN_ALL_REDUCE, EXCEPTION, set()),
        # A rank whose peer ended just before ends by the error that its receive raises.
        (ALL_IN_C, -signal.SIGTERM, {EXCEPTION}),
        (SWALLOWED, -signal.SIGTERM, set()),
        (DEAF, -signal.SIGKILL, set()),
    ],
    ids=["in-all-reduce", "all-in-native-code", "interrupt-swallowed", "deaf"],
)
async def test_an_interrupt_ends_ranks_by_no_harsher_signal_than_it_takes(
    cluster: Cluster, source: str, ended_by: int, or_by: set[int]
) -> None:
    run = await cluster.run(source)
    assert await stop(run, StopMode.INTERRUPT) - or_by == {ended_by}
    assert set(run.errors()) == {0, 1, 2}


async def test_an_abort_ends_deaf_ranks(cluster: Cluster) -> None:
    assert await stop(await cluster.run(DEAF), StopMode.ABORT) == {-signal.SIGKILL}


async def test_an_interrupt_lets_a_cell_put_things_in_order(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import time
        try:
            print("here")
            time.sleep(600)
        finally:
            time.sleep(0.5)
            print("saved")
        """
    )
    await stop(run, StopMode.INTERRUPT)
    for rank in range(3):
        assert run.attempt.text(rank).startswith("here\nsaved\n")
        assert run.errors()[rank].message == f"Rank {rank} was ended: the job was stopped."
        assert run.errors()[rank].kind is ErrorKind.SIGNAL


async def test_a_stopped_process_is_woken_and_ended(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os, signal
        print("here")
        os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            pass
        """,
        nodes=2,
    )
    assert await stop(run, StopMode.INTERRUPT) <= {EXCEPTION, -signal.SIGTERM}


async def test_ranks_that_somebody_stopped_with_their_parent_are_woken_and_ended(cluster: Cluster) -> None:
    run = await cluster.run("print('here')\nwhile True: pass", nodes=2)
    await run.started()
    for agent in cluster.agents[:2]:
        signal_all(psutil.Process(agent.pid).children(recursive=True), signal.SIGSTOP)
    assert await stop(run, StopMode.INTERRUPT) <= {EXCEPTION, -signal.SIGTERM}


async def test_what_a_rank_has_started_ends_with_it(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os, subprocess, sys, time
        from torch.utils.data import DataLoader
        batches = iter(DataLoader(range(1_000_000), num_workers=2))
        next(batches)
        program = [sys.executable, "-c", "import time; time.sleep(600)"]
        away = subprocess.Popen(program, env={}, start_new_session=True)
        print(away.pid)
        time.sleep(600)
        """,
        nodes=1,
    )
    await run.started()
    away = psutil.Process(int(run.attempt.text(0)))
    assert lives(away)
    await stop(run, StopMode.INTERRUPT)
    assert not lives(away)


async def test_a_stop_before_the_start_starts_nothing(cluster: Cluster) -> None:
    for agent in cluster.agents[:1]:
        agent.send_signal(signal.SIGSTOP)
    run = await cluster.run("print('here')", nodes=1)
    await run.stop()
    cluster.agents[0].send_signal(signal.SIGCONT)
    await run.over()
    assert run.attempt.text(0) == ""
    assert "not started" in run.errors()[0].message
