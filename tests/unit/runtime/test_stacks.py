"""The agent's side: faulthandler's text parsed to frames, and when a rank counts as stalled."""

import subprocess
import sys
from dataclasses import dataclass

import pytest

from minicluster.runtime.diagnosis import stacks
from minicluster.runtime.diagnosis.watchdog import StallDetector

from ...patience import until

CELL = stacks.CellText("Cell In[5]", ("# %%distribute", "def train():", "    dist.barrier()", "train()"))
OWN = str(stacks._OWN_FOLDER)
TEXT = f"""Stack (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
Stack (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 4000 in barrier
  File "Cell In[5]", line 3 in train
  File "Cell In[5]", line 4 in <module>
  File "{OWN}/rank.py", line 113 in _execute
  ...
"""


def test_the_last_stacks_frames_come_with_the_cells_text_and_without_the_runtime():
    frames = stacks.parse(TEXT, CELL)
    assert [frame.function for frame in frames] == ["barrier", "train", "<module>"]
    assert [frame.text for frame in frames] == ["", "dist.barrier()", "train()"]
    assert [frame.cell for frame in frames] == [False, True, True]


def test_a_dump_is_whole_when_its_outermost_frame_is_there():
    whole = TEXT.removesuffix("  ...\n") + '  File "<frozen runpy>", line 198 in _run_module_as_main\n'
    assert stacks.is_whole(whole)
    threads = whole.splitlines(keepends=True)
    cut = ["".join(threads[:lines]) for lines in range(len(threads))]
    inner_module = next(part for part in cut if part.endswith("line 4 in <module>\n"))
    assert [part for part in cut if stacks.is_whole(part)] == [inner_module]
    assert not stacks.is_whole(whole.removesuffix("\n"))


BUSY = """
import sys, threading, time
from pathlib import Path
from minicluster.runtime.diagnosis import stacks
def deep(level):
    return 0 if level == 0 else 1 + deep(level - 1)
def work():
    while True:
        deep(200)
stacks.listen(Path(sys.argv[1]))
threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
time.sleep(60)
"""


def test_a_dump_does_no_harm_while_other_threads_run(tmp_path):
    """Frames of a thread that runs meanwhile cannot be read: that would end the process."""
    path = tmp_path / "stacks"
    with subprocess.Popen([sys.executable, "-c", BUSY, path], stdout=subprocess.PIPE) as busy:
        assert busy.stdout.readline() == b"ready\n"
        for _ in range(300):
            before = stacks.size(path)
            busy.send_signal(stacks.DUMP_SIGNAL)
            until(lambda before=before: stacks.size(path) > before or busy.poll() is not None)
        assert busy.poll() is None, "a dump has ended the process"
        busy.kill()
    assert stacks.answer(path, 0, CELL)[-1].function == "<module>"


@pytest.mark.parametrize("text", ["", "garbage\n", "Stack (most recent call first):\n  <no Python frame>\n"])
def test_no_frames_are_no_error(text):
    assert stacks.parse(text, CELL) == ()


def test_a_line_that_is_not_in_the_cell_has_no_text():
    assert [CELL.line(number) for number in (0, 1, 4, 5, -1)] == ["", "# %%distribute", "train()", "", ""]


def test_a_cell_whose_name_is_not_ascii_is_found_again(tmp_path):
    stacks.store_cell(tmp_path / "cell.json", "Zelle für [5]", "x = 1")
    cell = stacks.CellText.read(tmp_path / "cell.json")
    frames = stacks.parse('  File "Zelle f\\xfcr [5]", line 1 in <module>\n', cell)
    assert frames[0].text == "x = 1"
    assert stacks.CellText.read(tmp_path / "none.json") == stacks.CellText()


@dataclass
class Rank:
    """A rank as seen by the detector."""

    rank: int
    pid: int | None = 1000
    output_bytes: int = 0
    idle: bool = False


def detector_of(*ranks, stall_timeout_s=10.0):
    changes = []
    detector = StallDetector(ranks, stall_timeout_s, lambda: changes.append(detector.stalled_ranks))
    return detector, changes


def nothing(pids):
    return dict.fromkeys(pids, 3.0)


def test_a_session_s_rank_that_waits_for_a_cell_does_not_stall():
    waits, runs = Rank(0, idle=True), Rank(1)
    detector, changes = detector_of(waits, runs)
    detector.sample(0.0, nothing)
    detector.sample(10.0, nothing)
    assert changes == [(1,)]


def test_a_rank_without_any_sign_stalls_and_is_reported_once():
    detector, changes = detector_of(Rank(4))
    for now in range(100, 120):
        detector.sample(now, nothing)
    assert changes == [(4,)]
    assert detector.no_progress_s(4, 119) == 19


@pytest.mark.parametrize("sign", ["output", "cpu"])
def test_a_sign_of_life_ends_the_stall(sign):
    rank = Rank(0)
    detector, changes = detector_of(rank)
    for now in range(100, 120):
        detector.sample(now, nothing)
    if sign == "output":
        rank.output_bytes += 1
    detector.sample(120, nothing if sign == "output" else lambda pids: dict.fromkeys(pids, 3.5))
    assert changes == [(0,), ()]


def test_naps_are_no_progress_and_work_is():
    for share, stalled in ((0.02, (0,)), (0.2, ())):
        detector, _ = detector_of(Rank(0))
        for now in range(100, 130):
            detector.sample(now, lambda pids, now=now, share=share: dict.fromkeys(pids, now * share))
        assert detector.stalled_ranks == stalled


def test_without_a_timeout_nothing_is_reported_but_the_time_is_measured():
    detector, changes = detector_of(Rank(0), stall_timeout_s=0.0)
    for now in range(100, 200):
        detector.sample(now, nothing)
    assert (changes, detector.no_progress_s(0, 199)) == ([], 99)


def test_ranks_that_have_ended_are_not_stalled():
    rank = Rank(0)
    detector, changes = detector_of(rank)
    for now in range(100, 120):
        detector.sample(now, nothing)
    rank.pid = None
    detector.sample(120, nothing)
    assert changes == [(0,), ()]
