"""The output of `%distribute why`."""

from minicluster.commands import parse_command_line
from minicluster.display.why import Why
from minicluster.wire import Collective, JobState, JobWhy, RankStack, StackFrame, StackStatus

LINES = (
    StackFrame(file="/torch/distributed_c10d.py", line=7, function="all_reduce"),
    StackFrame(file="Cell In[5]", line=14, function="train", cell=True, text="dist.all_reduce(loss < 1)"),
    StackFrame(file="Cell In[5]", line=30, function="<module>", cell=True, text="train()"),
)
TOLD = JobWhy(
    job_id=7,
    state=JobState.RUNNING,
    sentence="Rank 1 is stopped.",
    hint="Wake it.",
    ranks=(
        RankStack(rank=1, sight=StackStatus.STOPPED),
        RankStack(
            rank=0,
            sight=StackStatus.SEEN,
            quiet_s=130,
            frames=LINES,
            helpers=(LINES[1:],),
            collective=Collective(name="all_reduce", number=13, tensors="float32[10, 20]"),
        ),
    ),
)


def test_the_verb_takes_a_job():
    assert parse_command_line("why 7")[1]["job"] == 7


def test_ranks_stand_side_by_side_in_the_cells_lines():
    lines = repr(Why(TOLD)).splitlines()
    assert lines[:2] == ["Rank 1 is stopped.", "Wake it."]
    assert [line.split("  ")[0] for line in lines[4:]] == ["0", "", "1"]
    assert "14: dist.all_reduce(loss < 1) ← 30: train()" in lines[4]
    assert "all_reduce (distributed_c10d.py:7)" in lines[4]
    assert "in all_reduce 13, float32[10, 20]" in lines[4]
    assert "2 min 10 s" in lines[4]
    assert "stopped by a signal" in lines[6]


def test_html_is_escaped_and_jobs_that_do_not_run_have_no_table():
    assert "loss &lt; 1" in Why(TOLD)._repr_html_()
    waiting = JobWhy(job_id=7, state=JobState.QUEUED, sentence="Job 7 is queued: no <slots>.")
    assert Why(waiting)._repr_html_() == "<p><b>Job 7 is queued: no &lt;slots&gt;.</b></p>"
    assert repr(Why(waiting)) == "Job 7 is queued: no <slots>."
