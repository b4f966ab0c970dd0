"""What pages compute in the browser: curves over an axis, numbers as text, colours. Without a hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

import minicluster_hub

STATIC = Path(minicluster_hub.__file__).parent / "pages" / "static"
PAGE = '<body><main id="minicluster" data-url="/" data-user="ada"></main></body>'
STEPS = 8
LOSS = {
    "run": 1,
    "name": "loss",
    "rank": 0,
    "step": list(range(STEPS)),
    "at": [100.0 + step for step in range(STEPS)],
    "value": [8.0 - step for step in range(STEPS)],
    "low": [],
    "high": [],
    "points": STEPS,
}
# Logged with each second step only.
EPOCH = {**LOSS, "name": "epoch", "at": LOSS["at"][::2], "value": [0.0, 0.0, 1.0, 1.0]}


def serve(route: Route) -> None:
    path = route.request.url.partition("pages.test/")[2]
    if path.endswith(".js"):
        route.fulfill(body=(STATIC / path).read_text(), content_type="text/javascript")
    else:
        route.fulfill(body=PAGE, content_type="text/html")


@pytest.fixture(scope="module")
def page(chromium: Browser) -> Iterator[Page]:
    page = chromium.new_page()
    page.route("http://pages.test/**", serve)
    page.goto("http://pages.test/")
    yield page
    page.close()


def called(page: Page, module: str, function: str, *arguments: object) -> Any:
    """Call an exported function in the page."""
    text = "async ([module, name, ...given]) => (await import(module))[name](...given)"
    return page.evaluate(text, [f"/{module}", function, *arguments])


def drawn(page: Page, curve: object, axis: str, span: object = None, by: object = None) -> Any:
    how = {"axis": axis, "range": span}
    return called(page, "runs/curve_data.js", "curveToDraw", curve, how, 90.0, by)


def test_a_curve_over_steps_and_over_the_time_since_the_start(page: Page) -> None:
    assert drawn(page, LOSS, "step")["x"] == LOSS["step"]
    assert drawn(page, LOSS, "time")["x"] == [10.0 + step for step in range(STEPS)]
    part = drawn(page, LOSS, "step", [2, 4])
    assert (part["x"], part["y"]) == ([2, 3, 4], [6.0, 5.0, 4.0])


def test_a_curve_over_a_metric_joins_values_of_equal_moments(page: Page) -> None:
    same = drawn(page, LOSS, "epoch", None, {**EPOCH, "at": LOSS["at"], "value": [0, 0, 0, 1, 1, 1, 2, 2]})
    assert same["x"] == [0, 1, 2]
    assert same["y"] == [7.0, 4.0, 1.5], "the mean of an epoch"
    assert (same["low"], same["high"]) == ([6.0, 3.0, 1.0], [8.0, 5.0, 2.0])


def test_between_two_values_of_the_axis_a_point_is_on_the_line(page: Page) -> None:
    between = drawn(page, LOSS, "epoch", None, EPOCH)
    assert between["x"] == [0, 0.5, 1]
    assert between["y"] == [7.0, 5.0, 3.0]
    assert between["info"]["points"] == STEPS, "the last point is beyond the axis"
    assert drawn(page, LOSS, "epoch")["x"] == [], "a run without this metric"


def test_values_that_are_no_numbers_are_gaps(page: Page) -> None:
    holes = {**LOSS, "value": [8.0, None, 6.0, None, None, 3.0, 2.0, None]}
    found = drawn(page, holes, "step")
    assert found["y"] == holes["value"]
    assert found["info"] == {"points": STEPS, "last": 2.0, "low": 2.0, "high": 8.0}
    assert called(page, "runs/numbers.js", "smoothed", [1.0, None, 1.0], 0.9) == [1.0, None, 1.0]


def test_smoothing_is_right_from_the_first_value_on(page: Page) -> None:
    first, second = called(page, "runs/numbers.js", "smoothed", [2.0, 4.0], 0.5)
    assert first == 2.0
    assert second == pytest.approx((0.25 * 2 + 0.5 * 4) / 0.75)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.1, "0.1"), (1 / 3, "0.33333"), (123456, "123456"), (-2.5e-7, "-2.5e-7"), (3e9, "3e+9")],
)
def test_numbers_as_text(page: Page, value: float, text: str) -> None:
    assert called(page, "runs/numbers.js", "numberText", value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.5, "1.5 s"), (200, "3:20"), (7400, "2:03:20"), (-90, "-1:30")]
)
def test_durations_as_text(page: Page, seconds: float, text: str) -> None:
    assert called(page, "runs/numbers.js", "durationText", seconds) == text


def shown(page: Page, text: str) -> list[list[str]]:
    """Return the pieces of a terminal's text, each with its classes and its style."""
    return page.evaluate(
        """async (text) => {
          const { coloured } = await import("/ansi.js");
          const parts = (node) => [node.textContent, node.className, node.getAttribute("style")];
          return coloured(text, {}).map((node) => (typeof node === "string" ? [node] : parts(node)));
        }""",
        text,
    )


def test_colours_of_a_terminal(page: Page) -> None:
    assert shown(page, "a\x1b[1;31mb\x1b[0mc") == [["a"], ["b", "fw-bold", "color: var(--mc-ansi-1);"], ["c"]]
    assert shown(page, "\x1b[38;5;196mr") == [["r", "", "color: rgb(255, 0, 0);"]]
    assert shown(page, "\x1b[48;2;1;2;3mt") == [["t", "", "background-color: rgb(1, 2, 3);"]]


def test_what_a_terminal_does_not_show_is_left_out(page: Page) -> None:
    assert shown(page, "10 %\r50 %\r100 %\n\x1b[2Kdone\x1b]0;title\x07") == [["100 %\ndone"]]
    evil = "\x1b[38;2;0);background:url(x)mred"
    assert all("url" not in (piece[2] if len(piece) > 1 else "") for piece in shown(page, evil))


def test_tags_are_checked_before_they_are_sent(page: Page) -> None:
    assert called(page, "runs/labels.js", "tagsOf", " a, b c ,, a") == ["a", "b c"]
    for text, told in (("x" * 65, "64 characters"), (",".join(map(str, range(21))), "at most 20")):
        message = page.evaluate(
            """async (text) => {
              const { tagsOf } = await import("/runs/labels.js");
              try { tagsOf(text); } catch (error) { return error.message; }
            }""",
            text,
        )
        assert told in message
