"""Output of a rank that is missing, removed or too long: later output is still shown."""

import pytest

from minicluster.display.ansi import without_colours
from minicluster.display.terminal import TerminalTail
from minicluster.wire.streams import shown_here

from .test_render import output, view_of


@pytest.mark.parametrize("begun", ["half", "\x1b[31mred", shown_here("0123456789abcdef", "a table")[:40]])
@pytest.mark.parametrize("more", [{"attempt": 2}, {"skipped_bytes": 500_000}])
def test_what_a_killed_rank_or_a_gap_left_open_hides_nothing_that_comes_later(begun, more):
    """The rest of a display, or the end of a colour, never arrives."""
    view = view_of(output(f"one\n{begun}"), output("two\nthree\n", **more))
    assert view.tails[0].lines()[-2:] == ["two", "three"]
    assert without_colours(view.tails[0].lines()[1]) in ("half", "red", "a table")


def test_more_than_a_tail_can_show_ends_what_was_begun():
    tail = TerminalTail(max_bytes=100)
    tail.feed(shown_here("0123456789abcdef", "a table")[:40])
    tail.feed("le\n\x1b_mc-end\x1b\\" + "line\n" * 200 + "last\n")
    assert tail.lines()[-1] == "last"


def test_a_progress_bar_that_removed_itself_is_gone_from_the_panel():
    view = view_of(output("begun\n99%"))
    view.change(11.0)
    view.apply(output("\r\x1b[K"))
    part = view.change(11.1)["ranks"]["0"]
    assert (part["start"], part["entries"]) == (1, ())


def test_a_large_table_of_one_of_many_ranks_is_shown():
    view = view_of(output(shown_here("0123456789abcdef", "x" * 9000)), world_size=128)
    assert view.tails[0].lines() == ["x" * 9000]
