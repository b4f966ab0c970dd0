"""Messages at a cell's end: which ranks waited for which, open waits, and lost objects."""

import pytest

from minicluster.display.failures import DistributedCellError
from minicluster.wire import ErrorKind, JobState

from ... import messages
from ...patience import until

LEFT_EARLY = """%%distribute --nodes 3
import os, sys, torch.distributed as dist
dist.barrier()  # all have their links: os._exit would break those that others still make
if dist.get_rank() == 0:
    {leave}
dist.barrier()
"""
IN_VAIN = f"the {messages.CELL_IS_OVER.format(rank=0)} barrier of cell line 6"


@pytest.mark.parametrize(
    "leave",
    ["os._exit(0)", pytest.param("sys.exit(0)", marks=pytest.mark.full("the gate has an exit at once"))],
)
def test_a_rank_that_left_early_is_named_in_the_others_error(notebook, leave):
    error = notebook.fails(LEFT_EARLY.format(leave=leave), DistributedCellError)
    assert IN_VAIN in error.message
    assert messages.WAITED_IN_VAIN in error.message
    assert messages.SAME_COLLECTIVES in error.hint


@pytest.mark.full("half a minute; in the gate a rank that left early is named")
def test_a_time_limit_says_who_waited_for_whom(notebook):
    cell = """%%distribute --nodes 3 --timeout 25s
import time, torch.distributed as dist
if dist.get_rank() == 2:
    time.sleep(600)
dist.barrier()
"""
    error = notebook.fails(cell, DistributedCellError)
    assert error.error.kind is ErrorKind.TIMEOUT
    assert "longer than its time limit of 25 s" in error.message
    assert "rank 2 never reached the barrier" in error.message and "ranks 0 and 1 wait" in error.message
    assert "cell line 5" in error.message and "Rank 2 is in cell line 4" in error.message


def test_a_group_that_gives_up_says_who_did_not_come(notebook):
    cell = """%%distribute --nodes 2
import time, datetime, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=7))
if dist.get_rank() == 0:
    time.sleep(600)
dist.barrier()
"""
    error = notebook.fails(cell, DistributedCellError)
    assert error.message.startswith(
        f"Rank 1 {messages.WAITED_IN_VAIN}: rank 0 never reached the barrier of cell line 6"
    )
    assert "Rank 0 is in cell line 5" in error.message


@pytest.mark.full("tests/runtime/rank/test_endings has it without a time limit")
def test_a_thread_that_stays_is_named_while_it_does_and_at_the_time_limit(notebook):
    cell = """%%distribute --nodes 1 --timeout 12s --detach
import threading, time
threading.Thread(target=time.sleep, args=(600,), name="feeder").start()
"""
    handle = notebook.run(cell)
    until(lambda: "rank 0, " in handle.job.note and "thread feeder" in handle.job.note)
    assert handle.state is JobState.RUNNING
    until(lambda: handle.state.terminal)
    assert "rank 0" in handle.job.error.message and "thread feeder" in handle.job.error.message


def test_files_that_went_with_the_working_folder_are_named_at_the_end(notebook, tmp_path, capsys):
    (tmp_path / "data.json").write_text("{}")
    notebook.run("%%distribute --nodes 1 --with data.json\nopen('model.pt', 'w').close();")
    shown = capsys.readouterr().out
    assert "is gone: model.pt." in shown and "mc.output()" in shown
