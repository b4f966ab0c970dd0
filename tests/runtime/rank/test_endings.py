"""What a cell leaves at its end: forked children, threads, processes, files."""

from __future__ import annotations

import pytest

from minicluster.capture.payload import pack
from minicluster.wire import StackStatus

from ..cluster import Cluster, Run
from ..test_why import dump_stacks


async def test_a_forked_child_that_comes_through_to_the_end_leaves_the_result_alone(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        child = not child
        who = "child" if child else "parent"
        print(who)
        """,
        nodes=1,
    )
    assert (await run.result())["who"] == "parent"
    assert run.attempt.text(0) == "child\nparent\n"


async def test_a_forked_child_that_fails_does_not_fail_its_rank(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os
        child = os.fork()
        if child == 0:
            raise ValueError("only in the child")
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        """,
        nodes=1,
    )
    assert (await run.result())["status"] == 1
    assert "ValueError: only in the child" in run.attempt.text(0)


async def test_what_a_cell_does_at_a_signal_its_forked_children_do_too(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(there, b"ready")
            while True:
                time.sleep(0.01)  # Python would answer a signal just before a longer one only after it.
        os.read(here, 5)
        os.kill(child, signal.SIGTERM)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        """,
        nodes=1,
        pull=("status",),
    )
    assert (await run.result())["status"] == 7


LATE_THREAD = """
    import os, threading, time
    done = []
    def late():
        while not os.path.exists({gate!r}):
            time.sleep(0.05)
        done.append("all of it")
    threading.Thread(target=late, name="loader").start()
    """
LATE_PROCESS = """
    import multiprocessing, os, time
    done = []
    def late():
        while not os.path.exists({gate!r}):
            time.sleep(0.05)
    multiprocessing.get_context("fork").Process(target=late, name="loader").start()
    """


def ending(run: Run) -> str:
    return " ".join(run.attempt.tasks[0].report.ending)


@pytest.mark.parametrize(("source", "what"), [(LATE_THREAD, "thread"), (LATE_PROCESS, "process")])
async def test_what_a_cell_began_is_waited_for_and_named(cluster: Cluster, source: str, what: str) -> None:
    """Once it was killed after ten seconds, and the job counted as a success."""
    gate = cluster.folder / f"gate-{what}"
    run = await cluster.run(source.format(gate=str(gate)), nodes=1)
    note = f"The cell is over on rank 0, which waits for its {what} loader."
    await cluster.service.until(lambda: ending(run) == note)
    seen = (await dump_stacks(run))[0]
    assert (seen.sight, seen.ending) == (StackStatus.SEEN, f"its {what} loader")
    gate.touch()
    result = await run.result()
    assert result["done"] == (["all of it"] if what == "thread" else [])
    assert ending(run) == ""


async def test_ranks_whose_values_are_waited_for_are_named(cluster: Cluster) -> None:
    gate = cluster.folder / "gate-values"
    run = await cluster.run(
        f"""
        import os, time
        x = 1
        while os.environ["RANK"] == "1" and not os.path.exists({str(gate)!r}):
            time.sleep(0.05)
        """,
        nodes=2,
        gather=("x",),
    )
    note = "The cell is over on rank 0, which waits for the values of rank 1."
    await cluster.service.until(lambda: ending(run) == note)
    gate.touch()
    assert (await run.result())["x"] == [1, 1]


async def test_a_pool_that_nobody_closed_is_no_reason_to_wait(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(2)
        value = pool.submit(lambda: 5).result()
        """,
        nodes=1,
        pull=("value",),
    )
    await run.over(20)
    assert (await run.result())["value"] == 5


async def test_files_that_go_with_the_working_folder_are_named(cluster: Cluster) -> None:
    bundle = pack({"kind": "bundle", "runnable": []}, {"kept.txt": b"as it was", "changed.txt": b"old"})
    run = await cluster.run(
        """
        import os
        open("kept.txt").read()
        open("changed.txt", "w").write("new")
        os.mkdir("run")
        open("run/model.pt", "w").close();
        """,
        nodes=1,
        bundle=bundle,
    )
    await run.result()
    (note,) = run.attempt.notes
    assert note.startswith(
        "What the cell wrote into its working folder on node-0 is gone: changed.txt, run/model.pt."
    )
    assert "mc.output()" in note


async def test_names_that_are_no_text_fail_the_cell_and_not_the_agent(cluster: Cluster) -> None:
    """The names are of files from an old archive, and appear in an error."""
    bundle = pack({"kind": "bundle", "runnable": []}, {"tool.py": b"value = 3"})
    run = await cluster.run(
        """
        import os
        open(b"caf\\xe9.txt", "w").close()
        raise ValueError("what is " + os.listdir()[0] + os.listdir()[1])
        """,
        nodes=1,
        bundle=bundle,
    )
    error = await run.culprit()
    assert "caf?.txt" in error.message
    (note,) = run.attempt.notes
    assert "is gone: caf?.txt." in note


async def test_who_writes_nothing_is_told_nothing(cluster: Cluster) -> None:
    bundle = pack({"kind": "bundle", "runnable": []}, {"tool.py": b"value = 3"})
    run = await cluster.run("from tool import value", nodes=1, bundle=bundle)
    assert (await run.result())["value"] == 3
    assert not run.attempt.notes
