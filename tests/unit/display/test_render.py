"""How a job is shown: terminal output, curves, the saved picture, changes for a panel."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster.client.sse import ConnectionStatus, Ended
from minicluster.display.curves import JobMetrics
from minicluster.display.plain import PlainScreen
from minicluster.display.plot import plot_html
from minicluster.display.render import picture, text_form
from minicluster.display.terminal import TerminalTail
from minicluster.display.view import RunView, duration
from minicluster.wire import ErrorKind, Job, JobError, JobState, LogChunk, Record, Records
from minicluster.wire.streams import CLEAR, CLEAR_NEXT, shown_here

from ... import messages


def job(state=JobState.RUNNING, **more):
    given = {"id": 7, "owner": "ada", "name": "cell", "created_at": 0.0, "started_at": 10.0, "world_size": 2}
    return Job(**{**given, "state": state, "nodes": ("node-1", "node-2"), **more})


def view_of(*events, **more):
    view = RunView(job(**more), "/services/minicluster/jobs/7")
    for event in events:
        view.apply(event)
    return view


def output(text, rank=0, attempt=1, **more):
    given = {"stream": f"rank-{rank}", "offset": 0, "size_bytes": len(text), **more}
    return LogChunk(**given, text=text, attempt=attempt)


def test_the_output_of_attempts_is_kept_apart():
    view = view_of(
        output("step 1\n"),
        output("step 2\n"),
        output("step 2\n", attempt=2),
        output("a\n", 1, attempt=2),
    )
    assert view.tails[0].lines() == ["step 1", "step 2", messages.NEXT_ATTEMPT.format(number=2), "step 2"]
    assert view.tails[1].lines() == [messages.NEXT_ATTEMPT.format(number=2), "a"]


def logged(step, rank=0, **values):
    return Record(kind="log", rank=rank, at=float(step), step=step, values=values)


def lines(*texts):
    tail = TerminalTail()
    for text in texts:
        tail.feed(text)
    return tail.lines()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a\nb"], ["a", "b"]),
        ([" 10%|#", "\r 20%|##", "\r100%|###\n", "done\n"], ["100%|###", "done"]),
        (["long line\rab\n"], ["abng line"]),
        (["windows\r\nlines\r\n"], ["windows", "lines"]),
        (["x\n"] * 3 + ["y\n"], ["x  (×3)", "y"]),
        (["\n\n"], ["", ""]),
        (["\x1b[31mred\x1b[0m \x1b]0;title\x07plain"], ["\x1b[31mred\x1b[0m plain"]),
        (["\x1b[3", "1mred\nstill\x1b[m"], ["\x1b[31mred\x1b[0m", "\x1b[31mstill\x1b[0m"]),
        (["\x1b[1;32mab\x1b[22mcd\r\x1b[0mx"], ["x\x1b[1;32mb\x1b[0m\x1b[32mcd\x1b[0m"]),
        (["a long one\r\x1b[2Kshort\n", "0123\b\b\x1b[K"], ["short", "01"]),
        (["\x1b[38;5;196mone\x1b[38;2;1;2;3mtwo"], ["\x1b[38;5;196mone\x1b[0m\x1b[38;2;1;2;3mtwo\x1b[0m"]),
        (["abc\b\b\bxy"], ["xyc"]),
        (["bell\x07"], ["bell"]),
    ],
)
def test_output_as_a_terminal_shows_it(texts, expected):
    assert lines(*texts) == expected


def test_a_tail_is_bounded_in_lines_and_bytes():
    tail = TerminalTail(max_lines=50, max_bytes=1000)
    for number in range(1000):
        tail.feed(f"{number}\n")
    assert tail.lines() == [str(number) for number in range(950, 1000)]
    tail.feed("x" * 5_000_000)
    assert sum(map(len, tail.lines())) < 5000


DISPLAYED = shown_here("0123456789abcdef", "a table")
TOKENS = [
    "\x1b[K",
    "\x1b[2K",
    "\x1b[31m",
    "\x1b[0m",
    DISPLAYED,
    DISPLAYED[:40],
    CLEAR,
    CLEAR_NEXT,
    "long " * 30,
]


@given(st.lists(st.text(alphabet="ab\n\r", max_size=8) | st.sampled_from(TOKENS), max_size=30))
def test_changes_put_together_are_the_whole(texts):
    tail, kept, first = TerminalTail(max_lines=4, max_bytes=100), [], 0
    for text in texts:
        tail.feed(text)
        change = tail.take_change()
        if change is not None:
            kept = kept[max(0, change.first - first) : max(0, change.start - first)] + list(change.lines)
            first = change.first
        assert kept == tail.entries()


@given(st.text(alphabet="a\r\n\x1b[31m", max_size=40), st.integers(0, 40))
def test_where_the_output_is_cut_makes_no_difference(text, at):
    assert lines(text[:at], text[at:]) == lines(text)


def test_curves_stay_small_and_keep_their_last_value():
    metrics = JobMetrics()
    metrics.add(logged(step, loss=1 / (step + 1)) for step in range(10_000))
    metrics.add([logged(5, rank=1, loss=99.0, only_there=1.0)])
    assert len(metrics.curves["loss"].points) <= 400
    assert metrics.curves["loss"].last == pytest.approx(1 / 10_000)
    assert metrics.curves["only_there"].last == 1.0


def test_curves_and_progress_go_on_when_the_lowest_rank_is_lost_and_the_others_train_on():
    def records_of(rank, steps):
        for step in steps:
            yield Record(kind="log", rank=rank, at=step, step=step, values={"loss": rank + step / 100})
            yield Record(kind="progress", rank=rank, at=step, done=step, total=100, label="step")

    streams = [list(records_of(0, range(20))), list(records_of(1, range(60))), list(records_of(2, range(60)))]
    for order in (streams, reversed(streams)):
        metrics = JobMetrics()
        for stream in order:
            metrics.add(stream)
        curve, progress = metrics.curves["loss"], metrics.progress
        assert [x for x, _ in curve.points] == list(range(60))
        assert (curve.points[19][1], curve.points[20][1], curve.last) == (0.19, 1.2, 1 + 0.59)
        assert progress is not None and progress.done == 59 and progress.left_s == pytest.approx(41.0)


def test_progress_tells_the_time_left():
    metrics = JobMetrics()
    metrics.add(
        Record(kind="progress", rank=0, at=float(n), done=n, total=10, label="epoch") for n in range(5)
    )
    metrics.add([Record(kind="progress", rank=1, at=9.0, done=1, total=10, label="epoch")])
    assert metrics.progress is not None
    assert (metrics.progress.done, metrics.progress.left_s) == (4, pytest.approx(6.0))


def test_all_that_is_logged_is_drawn_by_its_own_scale_or_counted():
    metrics = JobMetrics()
    magnitudes = {"loss": 2.0, "rate": 1e-4, "accuracy": 0.9, "samples": 5e6, "none": 0.0, "broken": math.nan}
    metrics.add(
        logged(step, **{name: value * (step + 1) / 3 for name, value in magnitudes.items()})
        for step in range(3)
    )
    metrics.add([logged(3, **{f"other{number}": 1.0 for number in range(19)}), logged(3, rank=1, loss=1.0)])
    drawn = plot_html(metrics.curves, metrics.left_out, metrics.other_ranks)
    labels = re.findall('aria-label="([^"]+)"', drawn)
    assert labels == ["Plot of loss, accuracy, other0, other1, none", "Plot of rate", "Plot of samples"]
    assert drawn.count("<polyline") == 5 and "broken <b>nan</b>" in drawn
    assert "+17 more: other2, other3" in drawn
    assert "1 other rank logged the same names" in drawn
    view = view_of(Records(records=(logged(0, **{f"name{number}": 1.0 for number in range(25)}),)))
    assert "+17 more" in view.snapshot(1.0)["metrics"]["plot"]
    assert "+17 more" in picture(view, 1.0) and "+17 more" in text_form(view, 1.0)


def test_the_picture_escapes_what_users_write_and_has_no_widget():
    evil = "<script>alert(1)</script>"
    view = view_of(
        output(evil + "\n"),
        Records(records=(logged(0, **{evil: 1.0}), logged(1, **{evil: 2.0}))),
        name=evil,
    )
    view.apply(Ended(job(JobState.FAILED, name=evil, error=JobError(kind=ErrorKind.EXCEPTION, message=evil))))
    html = picture(view, 20.0)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 4
    assert "<svg" not in html and '<img src="data:image/svg+xml;base64,' in html
    assert "widget" not in html


def test_the_picture_says_how_it_ended():
    ended = Ended(job(JobState.SUCCEEDED, ended_at=22.5))
    view = view_of(output("one\n"), output("two\n", rank=1), Records(records=(logged(0, loss=0.5),)), ended)
    html, text = picture(view, 99.0), text_form(view, 99.0)
    for shown in (html, text):
        assert messages.SUCCEEDED.format(ranks=2) in shown
        assert "run time 12 s" in shown
    assert html.count("<details") == 2
    assert html.count("<details open") == 1
    assert 'href="/services/minicluster/jobs/7"' in html
    assert "loss: 0.5" in text
    assert text.endswith("one")


def test_the_rank_that_failed_is_opened_and_named():
    error = JobError(kind=ErrorKind.EXCEPTION, message="ValueError: mine", rank=1, node="node-2")
    view = view_of(output("Connection reset by peer\n"), output("ValueError: mine\n", rank=1))
    assert view.first_shown() == 0
    view.apply(Ended(job(JobState.FAILED, ended_at=22.5, error=error)))
    html, text = picture(view, 99.0), text_form(view, 99.0)
    assert html.count("<details open") == 1
    assert "<summary" in html.split("<details open")[1] and "rank 1<" in html.split("<details open")[1]
    assert "Rank 1 on node-2: ValueError: mine" in html and "Rank 1 on node-2: ValueError: mine" in text
    assert text.endswith("ValueError: mine") and "Connection" not in text
    assert view.snapshot(99.0)["head"]["failed_rank"] == 1


def test_waiting_is_told_with_position_reason_and_expected_start():
    waiting = {"started_at": None, "queue_position": 2, "reason": "needs 3 nodes", "expected_start_at": 160.0}
    view = view_of(state=JobState.QUEUED, **waiting)
    assert view.title() == "Waiting, position 2"
    detail = view.detail(40.0)
    assert detail.startswith("needs 3 nodes · ") and detail.endswith(" start in 2 min 0 s")


def test_a_lost_connection_is_told_until_it_is_back():
    view = view_of(ConnectionStatus("ConnectError", 0.2, at=10.0, disconnected_s=0.4))
    assert "No contact with the cluster" in view.detail(11.0)
    assert "0.4 s (ConnectError)" in view.detail(11.0)
    assert "the job goes on" in view.detail(11.0)
    view.apply(ConnectionStatus("ConnectError", 5.0, at=70.0, disconnected_s=60.0))
    assert "1 min 0 s" in view.detail(71.0)
    view.apply(ConnectionStatus("", at=72.0, disconnected_s=62.0))
    back = view.detail(73.0)
    assert "again after 1 min 2 s" in back and "no output was lost" in back
    assert view.detail(90.0) == ""


def test_a_panel_is_told_changes_only():
    view = view_of(output("a\nb\n"))
    assert set(view.change(11.0)) == {"head", "ranks"}
    assert view.change(11.1) == {}
    view.apply(output("c\n"))
    change = view.change(11.2)
    assert set(change) == {"ranks"}
    assert change["ranks"]["0"]["entries"] == ("c",)
    assert view.snapshot(11.3)["ranks"]["0"]["entries"] == ("a", "b", "c")


def test_plots_are_sent_at_most_four_times_a_second():
    view = view_of()
    sent = 0
    for tick in range(40):
        view.apply(Records(records=(logged(tick, loss=1.0),)))
        sent += "metrics" in view.change(100 + tick * 0.05)
    assert sent <= 9


def test_plain_text_prints_each_line_once(capsys):
    screen, view = PlainScreen(), view_of(output("one\ntw"))
    screen.show(view, 11.0)
    view.apply(output("o\n" + "same\n" * 3 + "last"))
    screen.show(view, 11.1)
    view.apply(Ended(job(JobState.SUCCEEDED, ended_at=12.0)))
    screen.end(view, 12.0)
    assert capsys.readouterr().out.splitlines() == [
        f"[job 7] {messages.RUNNING.format(ranks=2)}",
        "one",
        "two",
        "same",
        "last",
        f"[job 7] {messages.SUCCEEDED.format(ranks=2)}",
        "[job 7] 2.0 s, full log: %distribute logs 7",
    ]


def test_plain_text_has_the_end_of_a_job_after_its_last_lines(capsys):
    screen, view = PlainScreen(), view_of(output("one\n"))
    for event in (job(JobState.SUCCEEDED, ended_at=12.0), output("two\n")):
        view.apply(event)
        screen.show(view, 12.0)
    screen.end(view, 12.0)
    succeeded = f"[job 7] {messages.SUCCEEDED.format(ranks=2)}"
    assert capsys.readouterr().out.splitlines()[:-1] == ["one", "two", succeeded]


def test_plain_text_has_all_lines_of_rank_0_also_if_another_rank_printed_first(capsys):
    screen, view = PlainScreen(), view_of(output("a\nb\n", rank=1))
    screen.show(view, 11.0)
    view.apply(output("one\ntwo\nthree\n"))
    screen.show(view, 11.1)
    view.apply(Ended(job(JobState.SUCCEEDED, ended_at=12.0)))
    screen.end(view, 12.0)
    assert capsys.readouterr().out.splitlines()[1:-2] == [
        "a",
        "b",
        "[job 7] output of rank 0:",
        "one",
        "two",
        "three",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (8.24, "8.2 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_curve_goes_on_from_the_step_where_an_attempt_goes_on():
    view = view_of(*(Records(records=(logged(step, loss=float(step)),)) for step in (1, 2, 3, 4, 5)))
    for step in (3, 4):
        view.apply(Records(records=(logged(step, loss=step + 0.5),)))
    assert view.metrics.curves["loss"].points == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (3.0, 3.5), (4.0, 4.5)]
