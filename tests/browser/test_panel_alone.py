"""The panel as a widget whose kernel may be gone, in a page with panel.js and without a hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

import minicluster

SOURCE = Path(minicluster.__file__).parent / "display" / "panel.js"
# The model that anywidget passes to a widget's code.
MODEL = """async (source) => {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const { default: panel } = await import(url);
  const heard = {};
  window.sent = [];
  window.interrupts = 0;
  const head = { id: 7, name: "cell", state: "running", title: "Running on 3 ranks", detail: "",
    nodes: "node-1", log: "/jobs/7", elapsed_s: 5, ticking: true, terminal: false, stopping: false };
  const plot = `<div><svg onload="window.evil = 1"><polyline points="0,0 1,1"></polyline></svg>
    <img src="x" onerror="window.evil = 1"><script>window.evil = 1</` + `script></div>`;
  const ranks = { "0": { first: 0, start: 0, entries: ["<b>one</b>", "two"], skipped: 0 } };
  window.tell = (name, message) => heard[name](message);
  panel.render({
    el: document.body.appendChild(document.createElement("div")),
    model: {
      get: () => ({ full: true, number: 3, head, ranks, metrics: { plot, progress: null } }),
      on: (name, callback) => (heard[name] = callback),
      off: () => {},
      send: (message) => window.sent.push(message),
      widget_manager: { kernel: { interrupt: () => (window.interrupts += 1) } },
    },
  });
}"""


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    page = chromium.new_page()
    page.clock.install()
    page.goto("about:blank")
    page.evaluate(MODEL, SOURCE.read_text())
    expect(page.locator(".mc-panel")).to_contain_text("Running on 3 ranks")
    yield page
    page.close()


def is_last_seen(page: Page) -> None:
    expect(page.locator(".mc-title")).to_have_text("Last seen: Running on 3 ranks")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)


def test_a_panel_whose_kernel_restarted_does_not_claim_to_run(page: Page) -> None:
    page.evaluate("tell('comm_live_update')")
    page.clock.run_for(100)
    is_last_seen(page)
    expect(page.locator(".mc-detail")).to_contain_text("its kernel restarted or ended")


def test_a_panel_that_hears_nothing_any_more_says_so_until_it_does(page: Page) -> None:
    page.clock.run_for(20_000)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.clock.run_for(10_000)
    is_last_seen(page)
    expect(page.locator(".mc-time")).to_have_text("00:05")
    change = "{ number: 4, ranks: { '0': { first: 0, start: 2, entries: ['three'], skipped: 0 } } }"
    page.evaluate(f"tell('msg:custom', {change})")
    page.clock.run_for(100)
    expect(page.locator(".mc-title")).to_have_text("Running on 3 ranks")
    expect(page.get_by_role("tabpanel")).to_contain_text("three")


def test_a_stop_that_nobody_answers_does_not_hang(page: Page) -> None:
    page.get_by_role("button", name="Stop").click()
    page.clock.run_for(1000)
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    assert page.evaluate("[sent, interrupts]") == [[{"kind": "stop"}], 1]
    page.clock.run_for(6000)
    expect(page.locator(".mc-detail")).to_contain_text("The job was not stopped: there was no answer")
    expect(page.get_by_role("button", name="Stop")).to_be_enabled()


def test_what_it_is_told_to_draw_stays_a_drawing(page: Page) -> None:
    expect(page.get_by_role("tabpanel")).to_contain_text("<b>one</b>")
    expect(page.locator(".mc-plotbox polyline")).to_have_count(1)
    expect(page.locator(".mc-plotbox img, .mc-plotbox script, .mc-plotbox [onload]")).to_have_count(0)
    page.clock.run_for(1000)
    assert page.evaluate("window.evil") is None


LAB = SOURCE.parent.parent / "lab"
# The stream's arguments from lab/index.js, with a socket that only counts; one of two jobs ends at once.
SERVER = """async () => {
  const { Stream } = await import("/stream.js");
  window.sockets = [];
  const socket = () => {
    const made = { readyState: WebSocket.CONNECTING, send() {} };
    made.close = () => { made.readyState = WebSocket.CLOSED; setTimeout(() => made.onclose()); };
    window.sockets.push(made);
    setTimeout(() => { made.readyState = WebSocket.OPEN; made.onopen(); });
    return made;
  };
  window.stream = new Stream({ socket });
  const view = { take() {}, hear() {}, fallSilent() {} };
  window.show = (job) => window.stream.add({ service: "/", job, made: 1 }, view);
  window.tell = (message) => window.sockets.at(-1).onmessage({ data: JSON.stringify(message) });
  const head = (terminal) => ({ full: true, number: 0, head: { terminal } });
  window.say = (job, terminal) => tell({ service: "/", job, made: 1, change: head(terminal) });
}"""


@pytest.fixture
def streams(chromium: Browser) -> Iterator[Page]:
    page = chromium.new_page()
    files = {"/": "<p>", "/stream.js": (LAB / "stream.js").read_text(), "/panel.js": SOURCE.read_text()}
    kind = {True: "text/javascript", False: "text/html"}
    page.route(
        "http://page.test/**",
        lambda route: route.fulfill(
            body=files[urlsplit(route.request.url).path],
            content_type=kind[route.request.url.endswith(".js")],
        ),
    )
    page.clock.install()
    page.goto("http://page.test/")
    page.evaluate(SERVER)
    yield page
    page.close()


def test_a_page_whose_jobs_are_over_asks_its_server_nothing_more(streams: Page) -> None:
    """A forgotten tab must not count as use of the server; a tab with a running job does."""
    streams.evaluate("show(1); show(2)")
    streams.clock.run_for(1000)
    streams.evaluate("say(1, true); say(2, false)")
    for _ in range(6):
        streams.clock.run_for(10_000)
        streams.evaluate("tell({ beat: true })")
    assert streams.evaluate("sockets.map((one) => one.readyState)") == [1]
    streams.evaluate("say(2, true)")
    streams.clock.run_for(60_000)
    assert streams.evaluate("sockets.map((one) => one.readyState)") == [3]
    streams.evaluate("show(3)")
    streams.clock.run_for(1000)
    assert streams.evaluate("sockets.map((one) => one.readyState)") == [3, 1]
