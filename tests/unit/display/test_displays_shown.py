"""How a rank's displays are shown: in place, once, and without active content."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from minicluster.display.ansi import as_html, without_colours
from minicluster.display.panel import PanelScreen
from minicluster.display.render import picture, sanitized, text_form
from minicluster.display.terminal import DisplayLine, TerminalTail
from minicluster.wire import Display, Displays, JobState
from minicluster.wire.streams import changed, shown_here

from .test_render import job, output, view_of

PNG = "iVBORw0KGgo="
ONE, TWO = "0123456789abcdef", "fedcba9876543210"


def displays(*shown, rank=0):
    return Displays(rank=rank, attempt=1, displays=shown)


def entries(view, rank=0):
    return list(view.snapshot(11.0)["ranks"][str(rank)]["entries"])


def figure(ident=ONE, **more):
    return Display(id=ident, data={"text/plain": "<Figure>", "image/png": PNG, **more})


@pytest.mark.parametrize("content_first", [True, False])
def test_a_figure_stands_between_the_lines_of_its_rank(content_first):
    events = [displays(figure(), rank=1), output(f"a\n{shown_here(ONE, '<Figure>')}b\n", rank=1)]
    view = view_of(*(events if content_first else reversed(events)))
    before, shown, after = entries(view, 1)
    assert (before, after) == ("a", "b")
    assert shown["image/png"] == PNG
    assert picture(view, 11.0).count(f"data:image/png;base64,{PNG}") == 1
    assert text_form(view, 11.0).endswith("a\n<Figure>\nb")


def test_a_change_is_told_from_its_place_on():
    view = view_of(output(f"a\n{shown_here(ONE, 'old')}b\n"), displays(figure()))
    view.change(11.0)
    view.apply(displays(Display(id=ONE, data={"text/html": "<b>new</b>"})))
    view.apply(output(changed(ONE)))
    part = view.change(11.1)["ranks"]["0"]
    assert (
        part["start"],
        [entry if isinstance(entry, str) else entry["text/html"] for entry in part["entries"]],
    ) == (
        1,
        ["<b>new</b>", "b"],
    )
    assert view.change(11.2) == {}


@pytest.mark.parametrize("cut", range(1, 75, 3))
def test_where_a_mark_is_cut_makes_no_difference(cut):
    text = "a" + shown_here(ONE, "two\nlines") + "b"
    tail = TerminalTail()
    tail.feed(text[:cut])
    tail.feed(text[cut:])
    assert tail.entries() == ["a", DisplayLine(ONE, "two\nlines"), "b"]


def test_a_panel_gets_colours_as_html_that_is_escaped():
    view = view_of(output("\x1b[1;31m<i>bad</i>\x1b[0m\nplain\n"))
    coloured, plain = entries(view)
    (html,) = coloured.values()
    assert html.startswith('<span style="font-weight:bold;color:#') and "&lt;i&gt;" in html
    assert plain == "plain"
    assert html in picture(view, 11.0)
    assert "<i>bad</i>\nplain" in text_form(view, 11.0)


@pytest.mark.parametrize(
    ("text", "css"),
    [
        ("\x1b[91mx", "color:#b22b31"),
        ("\x1b[38;5;196mx", "color:rgb(255,0,0)"),
        ("\x1b[48;2;1;2;300mx", "background-color:rgb(1,2,255)"),
        ("\x1b[38;5mx", "color:inherit"),
        ("\x1b[3;4mx", "font-style:italic;text-decoration:underline"),
    ],
)
def test_colours(text, css):
    assert as_html(text) == f'<span style="{css}">x</span>'
    assert without_colours(text) == "x"


@pytest.mark.parametrize(
    ("html", "safe"),
    [
        ("<table border=1><tr><td>1<td>2</table>", '<table border="1"><tr><td>1<td>2</td></td></tr></table>'),
        ("<script>alert(1)</script><b onclick=x>b</b>", "<b>b</b>"),
        ("<img src=x onerror=alert(1)>", "<img>"),
        ("<a href='javascript:alert(1)'>a</a>", "<a>a</a>"),
        (
            "<style>b{}</style><p style='color:red;position:fixed;background-color:url(x)'>p",
            '<p style="color:red">p</p>',
        ),
        ("</div></div><b>", "<b></b>"),
        ("<iframe srcdoc='<script>'></iframe>x", "x"),
        ("a < b &amp; <unknown>c</unknown>", "a &lt; b &amp; c"),
        ("<svg><script>1</script></svg>", ""),
    ],
)
def test_html_in_a_picture_cannot_act(html, safe):
    assert sanitized(html) == safe


def test_a_table_stays_in_the_picture_and_its_scripts_do_not():
    html = "<div><script>steal()</script><table class='dataframe'><tr><td>42</td></tr></table>"
    view = view_of(displays(Display(id=TWO, data={"text/html": html})), output(shown_here(TWO, "x\n42")))
    shown = picture(view, 11.0)
    assert "<td>42</td>" in shown and "steal" not in shown
    assert shown.count("<div") == shown.count("</div>")


@pytest.fixture
def screen(monkeypatch):
    """A screen in a notebook, and the times at which it changed the document."""
    changed_at, now = [], [0.0]
    handle = SimpleNamespace(update=lambda shown, raw: changed_at.append(now[0]))
    monkeypatch.setattr("minicluster.display.panel.display", lambda *args, **more: handle)
    return SimpleNamespace(panel=PanelScreen(lambda: None, "/", True), now=now, changed_at=changed_at)


def show_until(screen, view, end_s):
    while screen.now[0] < end_s:
        screen.panel.show(view, screen.now[0])
        screen.now[0] += 0.5


def test_a_notebook_is_changed_ever_less_often_while_nothing_new_happens(screen):
    show_until(screen, view_of(), 3600)
    gaps = [later - sooner for sooner, later in pairwise(screen.changed_at)]
    assert len(gaps) < 60
    assert gaps == sorted(gaps) and gaps[0] == 2.0 and 100 < gaps[-1] <= 120.5


def test_a_new_state_is_kept_soon(screen):
    view = view_of()
    show_until(screen, view, 1800)
    view.apply(job(JobState.STOPPING))
    show_until(screen, view, 1803)
    assert screen.changed_at[-1] >= 1800
