"""Ranks' output: complete, in order, and never blocking."""

from __future__ import annotations

import pytest

from minicluster.wire import StopMode

from ..cluster import Cluster

LINES = 20_000


async def test_a_flood_loses_nothing_and_keeps_its_order(cluster: Cluster) -> None:
    run = await cluster.run(
        f"""
        import sys
        for line in range({LINES}):
            print("line", line, file=sys.stderr if line % 3 else sys.stdout)
        """
    )
    await run.result()
    expected = "".join(f"line {line}\n" for line in range(LINES))
    for rank in range(3):
        assert run.attempt.text(rank) == expected


async def test_a_flood_does_not_keep_the_first_signal_from_ending_its_ranks(cluster: Cluster) -> None:
    run = await cluster.run("while True:\n    print('x' * 100)")
    await run.started()
    await run.stop(StopMode.INTERRUPT)
    await run.over(120)
    assert {rank.exit_code for rank in run.attempt.ranks.values()} == {1}


async def test_carriage_returns_and_an_open_last_line_are_kept(cluster: Cluster) -> None:
    run = await cluster.run(
        r"""
        import os, subprocess, sys
        for percent in (0, 50, 100):
            print(f"\r{percent} %", end="")
        print("\rdone", end="", file=sys.stderr)
        os.write(1, b" raw")
        subprocess.run(["echo", "-n", " child"])
        print(" \u00fc\ud800", end="")
        """,
        nodes=1,
    )
    await run.result()
    assert run.attempt.text(0) == "\r0 %\r50 %\r100 %\rdone raw child \u00fc?"


async def test_what_c_code_has_buffered_is_written(cluster: Cluster) -> None:
    run = await cluster.run("import ctypes\nctypes.CDLL(None).printf(b'from C')", nodes=1)
    await run.result()
    assert run.attempt.text(0) == "from C"


async def test_output_is_complete_though_a_child_holds_the_pipe(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import subprocess
        words = ["sh", "-c", "echo started; echo >&2; exec sleep 600"]
        subprocess.Popen(words, stderr=subprocess.PIPE).stderr.read(1)
        print("end")
        """,
        nodes=1,
    )
    await run.result()
    assert run.attempt.text(0) == "started\nend\n"


async def test_each_task_sends_the_records_of_its_ranks(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import torch
        import minicluster as mc
        for step in range(3):
            mc.log(step=step, loss=torch.tensor(0.5) / (step + 1), bad=float("nan"))
        for _ in mc.progress(range(1000), label="epoch"):
            pass
        """,
        nodes=2,
        ranks_per_node=2,
    )
    await run.result()
    for stream, ranks in (("records", {0, 1}), ("agent-1", {2, 3})):
        records = run.records(stream)
        assert {record.rank for record in records} == ranks
        for rank in ranks:
            logged = [record for record in records if record.rank == rank and record.kind == "log"]
            assert [record.step for record in logged] == [0, 1, 2]
            assert [round(record.values["loss"], 3) for record in logged] == [0.5, 0.25, 0.167]
            bars = [record for record in records if record.rank == rank and record.kind == "progress"]
            assert (bars[-1].done, bars[-1].total, bars[-1].label) == (1000, 1000, "epoch")
            assert len(bars) < 100


@pytest.mark.parametrize("end", ["", "raise ValueError('over')", "sys.exit(3)"])
async def test_values_that_a_device_still_computes_come_at_a_ranks_end(cluster: Cluster, end: str) -> None:
    run = await cluster.run(
        f"""
        import sys, time
        from minicluster.train.metrics import pending
        class Late:
            until = time.monotonic() + 0.3
            def ready(self):
                return time.monotonic() > self.until
            def numbers(self):
                return {{"loss": 0.5}}
        pending.add(pending.Entry(0, 1.0, 1.0, {{"loss": None}}, (Late(),)))
        {end}
        """,
        nodes=1,
    )
    await run.over()
    assert [record.values for record in run.records()] == [{"loss": 0.5}]
