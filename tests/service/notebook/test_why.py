"""A stuck cell reports why by itself; `%distribute why` shows the same at any time."""

import pytest

from minicluster.wire import JobState

from ...patience import until

STANDS_STILL = """%%distribute --nodes 3 --detach {options}
import torch, torch.distributed as dist
print("here")
if dist.get_rank() == 2:
    __import__("time").sleep(600)
dist.all_reduce(torch.ones(1))
"""
SENTENCE = "Rank 2 never reached the all_reduce of cell line 6; ranks 0 and 1 wait there."


@pytest.fixture
def still(notebook):
    """Start a cell that hangs; stop the job at the end."""
    handles = []

    def start(options=""):
        handles.append(notebook.run(STANDS_STILL.format(options=options)))
        until(lambda: handles[-1].state is JobState.RUNNING)
        return handles[-1]

    yield start
    for handle in handles:
        handle.stop()
        until(lambda handle=handle: handle.state.terminal)


@pytest.mark.full("tests/runtime/test_why and tests/unit/display/test_why_shown have its two halves")
def test_a_stalled_job_shows_the_sentence_while_it_lasts(still):
    handle = still("--stall-timeout 6s")
    until(lambda: handle.job.note.startswith(SENTENCE))
    handle.stop()
    until(lambda: handle.state.terminal)
    assert handle.job.note == ""


@pytest.mark.full("tests/service/api/jobs/test_why has it without ranks")
def test_why_is_answered_at_any_time(still, notebook):
    handle = still("--stall-timeout 0")
    until(lambda: repr(notebook.run(f"%distribute why {handle.id}")).startswith(SENTENCE))
    shown = repr(notebook.run(f"%distribute why {handle.id}"))
    assert "6: dist.all_reduce(torch.ones(1))" in shown
    assert handle.job.note == ""
    handle.stop()
    until(lambda: handle.state.terminal)
    ended = repr(notebook.run(f"%distribute why {handle.id}"))
    assert ended.startswith(f"Job {handle.id} is stopped")
