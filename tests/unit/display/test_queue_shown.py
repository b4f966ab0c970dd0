"""The output of `%distribute queue`."""

from minicluster.commands import parse_command_line
from minicluster.display.queue import Queue
from minicluster.wire import Ahead, MyQueue, QueuedJob, QuotaUse, Share

from ... import messages

SHARE = Share(
    slots=1,
    fair_slots=4 / 3,
    cluster_slots=4,
    used_slot_hours=2.5,
    others_slot_hours=10.0,
    quotas=(QuotaUse(kind="slots", limit=2, used=1, summary="at once"),),
)
TOLD = MyQueue(
    now=7200.0,
    policy="fair_share",
    jobs=(QueuedJob(id=7, name="a<b", position=2, reason="waits for job 5"),),
    share=SHARE,
    before=(Ahead(owner="bob", slots=3, since=3600.0, why="fair share: its owner has had less than you"),),
    running=(Ahead(owner="eve", slots=4, since=0.0, why="a job that runs"),),
)


def test_the_verb_stands_alone():
    assert parse_command_line("queue")[0].verb == "queue"


def test_share_reasons_and_those_before_stand_below_each_other():
    text = repr(Queue(TOLD))
    assert text.startswith(f"You hold 1 of 4 slots; 1.33 {messages.FAIR_SHARE_NOW}.")
    assert "2.5 slot-hours lately, others 10 " in text
    assert "Quota of slots: 1 of 2 (at once)." in text and "ordered by fair_share." in text
    assert text.index("waits for job 5") < text.index("Before your first job:") < text.index("bob")
    assert "1 h 0 min" in text and "eve" in text


def test_a_job_without_a_position_in_another_queue_has_none_here():
    job = TOLD.jobs[0].model_copy(update={"position": 0})
    text = repr(Queue(TOLD.model_copy(update={"jobs": (job,)})))
    (row,) = (line for line in text.splitlines() if "a<b" in line)
    assert row.split()[0] == "7"


def test_another_queue_has_no_fair_share_here():
    told = TOLD.model_copy(
        update={"policy": "Slurm", "share": SHARE.model_copy(update={"fair_slots": None})},
    )
    assert repr(Queue(told)).startswith("You hold 1 of 4 slots. You have had")
    assert messages.FAIR_SHARE_NOW not in repr(Queue(told)) and "ordered by Slurm." in repr(Queue(told))


def test_html_is_escaped():
    assert "a&lt;b" in Queue(TOLD)._repr_html_() and "<b>Before" in Queue(TOLD)._repr_html_()


def test_who_waits_for_nothing_is_told_so():
    alone = SHARE.model_copy(update={"others_slot_hours": None, "quotas": ()})
    text = repr(Queue(TOLD.model_copy(update={"jobs": (), "before": (), "running": (), "share": alone})))
    assert text.endswith("None of your jobs waits.") and "lately, others none." in text
