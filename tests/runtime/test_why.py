"""Where real ranks are: in collectives, in loops, stopped, with loaders; and which ones are stalled."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import textwrap
from collections.abc import Callable

import pytest

from minicluster.wire import RankStack, StackStatus, StopMode
from minicluster_hub.diagnosis.why import BUSY_S, explain

from .. import messages
from .cluster import Cluster, Run

_NUMBERS = itertools.count(1)
OTHERS = pytest.mark.full("the same with ranks that wait for something else")
HEAD = """import os, signal, socket, time
import torch, torch.distributed as dist
print("here")
"""


async def dump_stacks(run: Run) -> dict[int, RankStack]:
    """Request the stacks of a run's ranks from all agents."""
    stack_dump_id = next(_NUMBERS)
    for task in run.attempt.tasks:
        version = str(int(task.orders.version) + 1)
        task.orders = task.orders.model_copy(update={"version": version, "look": stack_dump_id})
    found: dict[int, RankStack] = {}

    def all_answered() -> bool:
        for task in run.attempt.tasks:
            if task.report.look == stack_dump_id:
                found.update({stack.rank: stack for stack in task.report.stacks})
        return len(found) == run.attempt.world_size

    await run.cluster.service.send_notices()
    await run.cluster.service.until(all_answered)
    return found


def functions(stack: RankStack) -> list[str]:
    return [frame.function for frame in stack.frames]


def in_loop(stack: RankStack) -> bool:
    return any(frame.cell and frame.line in (4, 5) for frame in stack.frames)


def cell_line(stack: RankStack) -> tuple[int, str]:
    frame = next(frame for frame in stack.frames if frame.cell)
    return frame.line, frame.text


async def seen(run: Run, wanted: Callable[[dict[int, RankStack]], bool]) -> dict[int, RankStack]:
    """Dump stacks until the ranks are at the expected places; raise if the job has failed."""
    while not wanted(found := await dump_stacks(run)):
        assert not run.errors(), run.errors()
    return found


def waits(stack: RankStack, function: str) -> bool:
    return function in functions(stack)


async def test_a_rank_in_a_loop_and_those_that_wait_for_it_in_an_all_reduce(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import torch, torch.distributed as dist
        print("here")
        if dist.get_rank() == 2:
            while True:
                pass
        dist.all_reduce(torch.ones(1))
        """
    )
    await run.started()
    found = await seen(
        run, lambda them: all(waits(them[rank], "all_reduce") for rank in (0, 1)) and in_loop(them[2])
    )
    assert cell_line(found[0]) == cell_line(found[1]) == (6, "dist.all_reduce(torch.ones(1))")
    assert {stack.sight for stack in found.values()} == {StackStatus.SEEN}
    waiting, last = [found[rank].collective for rank in (0, 1)], found[2].collective
    assert [(one.name, one.tensors, one.is_over) for one in waiting if one] == [
        ("all_reduce", "float32[1]", False)
    ] * 2
    assert last is None or (last.is_over and last.number < (waiting[0] or last).number)
    await run.stop()
    await run.over()


async def test_a_stopped_rank_is_told_from_one_that_works(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os, signal, torch, torch.distributed as dist
        print(os.getpid())
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()
        print("through")
        """,
        nodes=2,
    )
    await run.started()
    found = await seen(run, lambda them: waits(them[0], "barrier") and them[1].sight is StackStatus.STOPPED)
    assert found[1].frames == ()
    os.kill(int(run.attempt.text(1)), signal.SIGCONT)
    assert (await run.over()).succeeded, run.errors()


async def test_a_look_is_answered_though_the_job_ends_meanwhile(cluster: Cluster) -> None:
    run = await cluster.run("import time\nprint('here')\ntime.sleep(600)", nodes=2)
    await run.started()
    dumping = asyncio.create_task(dump_stacks(run))
    await asyncio.sleep(0)
    await run.stop(StopMode.ABORT)
    assert set(await dumping) == {0, 1}
    await run.over()


async def test_looks_do_no_harm_to_what_a_cell_computes(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import time, torch, torch.distributed as dist
        print("here")
        total, until = torch.zeros(1000), time.time() + 2
        while True:
            part = torch.ones(1000)
            dist.all_reduce(part)
            total += part
            go_on = torch.tensor([float(time.time() < until)])
            dist.broadcast(go_on, 0)
            if not go_on:
                break
        value = bool((total == total[0]).all()), float(total[0]) % 3
        """
    )
    await run.started()
    for _ in range(10):
        await dump_stacks(run)
    assert (await run.result())["value"] == (True, 0.0)


async def test_a_loaders_processes_are_seen_as_well(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import time
        from torch.utils.data import DataLoader, Dataset
        class Slow(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                time.sleep(600)
        print("here")
        next(iter(DataLoader(Slow(), num_workers=2)))
        """,
        nodes=1,
    )
    await run.started()
    inside = [("__getitem__", "time.sleep(600)")] * 2

    def helpers(stack: RankStack) -> list[tuple[str, str]]:
        return [(frames[0].function, frames[0].text) for frames in stack.helpers if frames]

    found = await seen(run, lambda them: waits(them[0], "_try_get_data") and helpers(them[0]) == inside)
    assert cell_line(found[0])[0] == 9
    await run.stop()
    await run.over()


async def test_a_rank_whose_cell_is_over_has_ended(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import time, torch.distributed as dist
        print("here")
        if dist.get_rank() != 0:
            time.sleep(600)
        """,
        nodes=2,
    )
    await run.started()
    found = await seen(run, lambda them: them[0].sight is StackStatus.ENDED)
    assert found[1].sight is StackStatus.SEEN
    await run.stop()
    await run.over()


@pytest.mark.parametrize(
    ("body", "stalled"),
    [
        ("dist.barrier() if dist.get_rank() else exec('while True: pass')", {1, 2}),
        pytest.param("time.sleep(600)", {0, 1, 2}, marks=OTHERS),
        pytest.param("[time.sleep(0.1) for _ in range(6000)]", {0, 1, 2}, marks=OTHERS),
        ("while dist.get_rank(): print('.'), time.sleep(0.1)\n        time.sleep(600)", {0}),
    ],
    ids=["waits for a loop", "sleeps", "naps", "one prints"],
)
async def test_stalled_ranks_are_reported(cluster: Cluster, body: str, stalled: set[int]) -> None:
    source = f"""
        import time, torch.distributed as dist
        print("here")
        {body}
        """
    run = await cluster.run(source, stall_timeout_s=2.0)

    def reported() -> set[int]:
        return {rank for task in run.attempt.tasks for rank in task.report.quiet}

    since: list[int] = []

    def stays() -> bool:
        """Whether more than four further reports of each task said the same."""
        now = [task.reports for task in run.attempt.tasks]
        if reported() != stalled or not since:
            since[:] = now
        return all(count > before + 4 for count, before in zip(now, since, strict=True))

    await cluster.service.until(stays)
    assert reported() == stalled, (run.errors(), [task.report.ranks for task in run.attempt.tasks])
    await run.stop()
    await run.over()


SENTENCES = {
    "a rank sleeps": (
        """
        if dist.get_rank() == 2:
            time.sleep(600)
        dist.all_reduce(torch.ones(1))
        """,
        "Rank 2 never reached the all_reduce of cell line 6; ranks 0 and 1 wait there. "
        "Rank 2 is in cell line 5: `time.sleep(600)`.",
    ),
    "a rank computes for ever": (
        """
        while dist.get_rank() == 2: 1 + 1
        dist.all_reduce(torch.ones(1))
        """,
        "Rank 2 has not reached the all_reduce of cell line 5 yet; ranks 0 and 1 wait there. "
        "Rank 2 is in cell line 4: `while dist.get_rank() == 2: 1 + 1`.",
    ),
    "a rank waits for the network": (
        """
        if dist.get_rank() == 1:
            door = socket.create_server(("127.0.0.1", 0))
            socket.create_connection(door.getsockname()).recv(1)
        dist.barrier()
        """,
        "Rank 1 never reached the barrier of cell line 7; ranks 0 and 2 wait there. "
        "Rank 1 is in cell line 6: `socket.create_connection(door.getsockname()).recv(1)`.",
    ),
    "a rank left its loop early": (
        """
        for _ in range(3 - (dist.get_rank() == 0)):
            dist.all_gather_object([None] * 3, "x" * 10)
        dist.barrier()
        """,
        f"{messages.DIFFERENT_PLACES} rank 0 in the barrier of cell line 6, "
        "ranks 1 and 2 in the all_gather_object of cell line 5.",
    ),
    "a rank is stopped": (
        """
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(1))
        """,
        f"Rank 1 is {messages.STOPPED_BY_SIGNAL}; ranks 0 and 2 wait in the all_reduce of cell line 6.",
    ),
    "a loader gives nothing": (
        """
        class Slow(torch.utils.data.Dataset):
            __len__ = lambda self: 8
            __getitem__ = lambda self, index: time.sleep(600)
        if dist.get_rank() == 0:
            next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1)))
        dist.all_reduce(torch.ones(1))
        """,
        "Rank 0 never reached the all_reduce of cell line 9; ranks 1 and 2 wait there. Rank 0 is waiting for "
        "a DataLoader in cell line 8: `next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1)))`.",
    ),
    "gradients wait for a rank": (
        """
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        loss = model(torch.ones(4, 2)).sum()
        if dist.get_rank() == 2:
            time.sleep(600)
        loss.backward()
        """,
        f"Rank 2 never reached the {messages.BACKWARD_PASS} of cell line 8; "
        "ranks 0 and 1 wait there. Rank 2 is in cell line 7: `time.sleep(600)`.",
    ),
}


IN_THE_GATE = ("a rank sleeps", "a rank is stopped", "gradients wait for a rank")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        pytest.param(*case, id=name, marks=() if name in IN_THE_GATE else OTHERS)
        for name, case in SENTENCES.items()
    ],
)
async def test_the_sentence_is_right_for_real_ranks(cluster: Cluster, body: str, sentence: str) -> None:
    source = HEAD + textwrap.dedent(body).strip()
    run = await cluster.run(source, stall_timeout_s=BUSY_S + 1)
    # Wait for all ranks: one that is a second late must not count as absent.
    still = 2 if "has not reached" in sentence else 3
    await cluster.service.until(lambda: sum(len(task.report.quiet) for task in run.attempt.tasks) == still)
    text = explain(list((await dump_stacks(run)).values())).sentence
    await run.stop(StopMode.ABORT)
    await run.over()
    assert text == sentence
