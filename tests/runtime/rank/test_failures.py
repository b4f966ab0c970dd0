"""Failing ranks: the error names the cause, and the other ranks end at once."""

from __future__ import annotations

import re
import signal

import pytest

from minicluster.wire import DISK_FULL_SIGNAL, ErrorKind

from ..cluster import FILENAME, Cluster

LONG_S = 600


async def test_an_exception_has_the_lines_of_the_cell_and_ends_the_others(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import torch, torch.distributed as dist

        def broken(x):
            return x / 0

        print("here", flush=True)
        dist.barrier()
        if dist.get_rank() == 1:
            broken(3)
        dist.all_reduce(torch.ones(1))
        """
    )
    error = await run.culprit()
    assert (error.kind, error.rank, error.node) == (ErrorKind.EXCEPTION, 1, "node-1")
    assert error.message == "ZeroDivisionError: division by zero"
    assert f'File "{FILENAME}", line 9, in <module>\n    broken(3)\n' in error.traceback
    assert f'File "{FILENAME}", line 4, in broken\n    return x / 0\n' in error.traceback
    assert "minicluster/runtime" not in error.traceback
    assert error.traceback in run.attempt.text(1)
    assert set(run.errors()) == {0, 1, 2}


async def test_a_mistake_in_the_cell_is_shown_where_it_is(cluster: Cluster) -> None:
    run = await cluster.run("x = 1\ny = (x +\n", nodes=1)
    error = await run.culprit()
    assert error.message.startswith("SyntaxError: ")
    assert f'File "{FILENAME}", line 2' in error.traceback
    assert "y = (x +" in error.traceback
    assert "Traceback" not in error.traceback and "cell.py" not in error.traceback


async def test_an_exception_that_cannot_say_what_it_is_has_its_line(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        class Mute(Exception):
            def __str__(self):
                return self.nothing

        raise Mute(3)
        """,
        nodes=1,
    )
    error = await run.culprit()
    assert error.kind == ErrorKind.EXCEPTION
    assert error.message.startswith("Mute: ") and "AttributeError" in error.message
    assert f'File "{FILENAME}", line 5' in error.traceback


async def test_causes_are_kept_without_our_frames(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        try:
            {}["missing"]
        except KeyError as error:
            raise RuntimeError("wrapped") from error
        """,
        nodes=1,
    )
    error = await run.culprit()
    assert "KeyError: 'missing'" in error.traceback
    assert "direct cause" in error.traceback
    assert error.message == "RuntimeError: wrapped"


@pytest.mark.parametrize(
    ("statement", "kind", "message", "exit_code"),
    [
        ("sys.exit(3)", ErrorKind.EXIT, "exit code 3: sys.exit(3)", 3),
        ("sys.exit('no data')", ErrorKind.EXIT, "exit code 1: no data", 1),
        ("os._exit(7)", ErrorKind.EXIT, "exit code 7", 7),
        ("os.kill(os.getpid(), signal.SIGSEGV)", ErrorKind.SIGNAL, "SIGSEGV (segmentation fault)", -11),
        ("os.kill(os.getpid(), signal.SIGKILL)", ErrorKind.SIGNAL, "SIGKILL (killed from outside)", -9),
        ("os.abort()", ErrorKind.SIGNAL, "SIGABRT (abort)", -6),
    ],
)
async def test_an_end_without_an_exception_is_told_in_words(
    cluster: Cluster, statement: str, kind: ErrorKind, message: str, exit_code: int
) -> None:
    run = await cluster.run(
        f"""
        import os, signal, sys, time
        import torch.distributed as dist
        if dist.get_rank() == 2:
            print("last words", end="")
            {statement}
        time.sleep({LONG_S})
        """
    )
    error = await run.culprit()
    assert (error.rank, error.kind, error.exit_code) == (2, kind, exit_code)
    assert message in error.message
    assert run.attempt.text(2).startswith("last words")


async def test_a_crash_in_native_code_leaves_its_stack_in_the_output(cluster: Cluster) -> None:
    run = await cluster.run("import ctypes\nctypes.string_at(0)", nodes=1)
    error = await run.culprit()
    assert error.kind is ErrorKind.SIGNAL
    assert f'File "{FILENAME}", line 2' in run.attempt.text(0)


async def test_one_failing_rank_ends_its_neighbours_on_the_same_node(cluster: Cluster) -> None:
    run = await cluster.run(
        f"""
        import time, torch.distributed as dist
        if dist.get_rank() == 1:
            raise ValueError("only here")
        time.sleep({LONG_S})
        """,
        nodes=1,
        ranks_per_node=3,
    )
    error = await run.culprit()
    assert (error.rank, error.message) == (1, "ValueError: only here")
    ended = run.errors()[0]
    assert (ended.kind, ended.exit_code) == (ErrorKind.SIGNAL, -signal.SIGTERM)
    assert ended.message == "Rank 0 was ended: rank 1 failed."


@pytest.mark.full("ten seconds of waiting")
async def test_a_hang_at_exit_is_ended_and_noted_but_is_no_failure(cluster: Cluster) -> None:
    run = await cluster.run(
        f"""
        import atexit, time
        done = True
        atexit.register(time.sleep, {LONG_S})
        """,
        nodes=1,
    )
    assert (await run.result())["done"] is True
    assert [note for note in run.attempt.notes if "hung at its exit" in note]


async def test_an_error_recorded_by_torch_elastic_is_read(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os
        from torch.distributed.elastic.multiprocessing.errors import record

        @record
        def main():
            raise LookupError("from a script")

        try:
            main()
        finally:
            os._exit(1)
        """,
        nodes=1,
    )
    error = await run.culprit()
    assert (error.kind, error.message) == (ErrorKind.EXCEPTION, "LookupError: from a script")
    assert f'File "{FILENAME}", line 6, in main' in error.traceback


async def test_a_broken_link_points_at_the_rank_that_broke_it(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os, time, torch, torch.distributed as dist
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 1:
            os._exit(5)
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError:
            time.sleep(0.2)
            raise
        """,
        nodes=2,
    )
    error = await run.culprit()
    assert (error.rank, error.exit_code) == (1, 5)


async def test_a_payload_that_is_not_there_is_told(cluster: Cluster) -> None:
    run = await cluster.run("1", nodes=1, lose_payload=True)
    error = await run.culprit()
    assert error.kind is ErrorKind.START
    assert "could not be fetched" in error.message


async def test_who_fills_the_nodes_disk_is_ended_and_told_how_much_it_wrote(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os, tempfile, time
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * (200 << 20))
            file.flush()
            os.fsync(file.fileno())
        print("written")
        time.sleep(600)
        """,
        ranks_per_node=2,
    )
    await run.started()
    cluster.agents[1].send_signal(DISK_FULL_SIGNAL)
    error = await run.culprit()
    assert (error.kind, error.node) == (ErrorKind.DISK, "node-1")
    assert "was nearly full" in error.message and "GB were left" in error.message
    assert re.search(r"It wrote \d+\.\d GB", error.message) and "remove files" in error.hint
    failure = cluster.tasks[1].report.failure
    # Its files are removed with its container, which must therefore not stay warm.
    assert failure is not None and failure.kind is ErrorKind.DISK


async def test_an_image_without_a_compiler_is_named(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import torch
        from torch._inductor import config
        config.cpp.cxx = ("no-such-compiler",)
        torch.compile(torch.nn.GELU())(torch.ones(8))
        """,
        nodes=1,
    )
    error = await run.culprit()
    assert "No working C++ compiler found" in error.message
    assert "the ranks' image lacks" in error.hint and "g++" in error.hint
