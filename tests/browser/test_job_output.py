"""How the job's page draws a rank's output: its scripts run in a test page, without a hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

import minicluster_hub

STATIC = Path(minicluster_hub.__file__).parent / "pages" / "static"
IDS = re.findall(
    r'(?:byId|getElementById)\("([a-z-]+)"\)', "".join(one.read_text() for one in STATIC.glob("*.js"))
)
ERROR_IDS = ("error-message", "error-hint", "error-traceback")
PARTS = "".join(f'<div id="{name}"></div>' for name in sorted({*IDS, *ERROR_IDS} - {"minicluster"}))
# The test supplies the event stream: `tell` sends an event as the service would.
PAGE = f"""<body><main id="minicluster" data-url="/" data-user="ada" data-job="7"></main>{PARTS}<script>
const plain = fetch;
const events = () => new Response(new ReadableStream({{ start(opened) {{ window.stream = opened; }} }}));
fetch = async (address, how) => (address.endsWith("/events") ? events() : plain(address, how));
const line = (name, event) => `event: ${{name}}\ndata: ${{JSON.stringify(event)}}\n\n`;
tell = ([name, event]) => stream.enqueue(new TextEncoder().encode(line(name, event)));
</script><script type="module" src="/job.js"></script>"""
STORY_LINES = 450
IDENT = "0123456789abcdef"
PICTURE = {"rank": 0, "attempt": 1, "displays": [{"id": IDENT, "data": {"image/png": "iVBORw0KGgo="}}]}


def history(after: int, limit: int) -> dict[str, object]:
    """Return a page of a long history, as the service does."""
    ids = range(after + 1, min(STORY_LINES, after + limit) + 1)
    lines = [{"id": one, "at": 1.0, "kind": "stalled", "text": f"line {one}"} for one in ids]
    return {"lines": lines, "more": after + limit < STORY_LINES}


def serve(route: Route) -> None:
    name = route.request.url.rpartition("/")[2]
    if name.startswith("history"):
        query = {
            key: int(values[0]) for key, values in parse_qs(urlsplit(name).query).items() if key != "_xsrf"
        }
        route.fulfill(json=history(**query))
    elif name.endswith(".js"):
        route.fulfill(body=(STATIC / name).read_text(), content_type="text/javascript")
    else:
        route.fulfill(body=PAGE, content_type="text/html")


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    page = chromium.new_page()
    page.route("http://job.test/**", serve)
    page.goto("http://job.test/")
    page.wait_for_function("window.stream")
    yield page
    page.close()


def send_output(page: Page, text: str, **more: int) -> None:
    chunk = {"stream": "rank-0", "text": text, "skipped_bytes": 0, "attempt": 1, **more}
    page.evaluate("tell", ["log", chunk])
    page.evaluate("() => new Promise(requestAnimationFrame)")


def test_what_follows_a_gap_is_shown_although_the_end_of_a_picture_is_in_the_gap(page: Page) -> None:
    page.evaluate("tell", ["displays", PICTURE])
    send_output(page, f"one\n\x1b_mc-display {IDENT}\x1b\\<Figure")
    send_output(page, "two\nthree\n", skipped_bytes=500_000)
    log = page.locator("#log")
    expect(log).to_contain_text("500000 bytes left out")
    expect(log).to_contain_text("three")
    expect(log).not_to_contain_text("<Figure")
    expect(log.locator("img")).to_have_count(1)


def test_a_large_picture_that_comes_after_the_last_line_is_shown(page: Page) -> None:
    send_output(page, f"one\n\x1b_mc-display {IDENT}\x1b\\<Figure>\n\x1b_mc-end\x1b\\")
    expect(page.locator("#log")).to_contain_text("<Figure>")
    page.evaluate("tell", ["displays", PICTURE])
    expect(page.locator("#log img")).to_have_count(1)
    expect(page.locator("#log")).not_to_contain_text("<Figure>")


def test_a_long_history_is_shown_to_its_last_page(page: Page) -> None:
    page.evaluate("tell", ["job", {"id": 7, "name": "cell", "state": "running", "attempt": 1, "nodes": []}])
    rows = page.locator("#history tr")
    expect(rows).to_have_count(STORY_LINES)
    expect(rows.last).to_contain_text(f"line {STORY_LINES}")
