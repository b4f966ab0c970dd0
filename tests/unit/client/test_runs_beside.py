"""The list of runs beside a notebook: what a page is sent of it, and when its pages load it again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minicluster.client.client import JobServiceClient
from minicluster.client.sse import OPENED, changes
from minicluster.server_extension.base import Place
from minicluster.server_extension.runs import WatchedRuns, change, shown, small_curves
from minicluster.wire import Curve, CurveList, JobState, LastValue, NotebookCell, Run, RunMetrics

from ...patience import eventually
from ..display.test_render import job

METRICS = RunMetrics(run=7, metrics={"loss": LastValue(value=0.5, step=3)})


def run(number: int, *metrics: str, **more: Any) -> Run:
    values = {name: LastValue(value=1.0) for name in metrics}
    return Run(
        id=number, owner="ada", name="x", state=JobState.RUNNING, created_at=1.0, metrics=values, **more
    )


def test_a_run_says_where_its_notebook_is_now(tmp_path: Path) -> None:
    (tmp_path / "renamed.ipynb").touch()
    place = Place(tmp_path, {"k-1": "renamed.ipynb"})
    found = shown(run(7, notebook="old.ipynb", kernel="k-1", cell="c"), place)
    assert (found["path"], found["there"], found["cell"]) == ("renamed.ipynb", True, "c")
    gone = shown(run(7, notebook=str(tmp_path / "deep" / "old.ipynb"), kernel="k-0"), place)
    assert (gone["path"], gone["there"]) == ("deep/old.ipynb", False)
    assert "owner" not in found


def test_each_run_gets_the_curve_of_its_main_metric() -> None:
    asked: list[tuple[int, ...]] = []

    def curves(runs: tuple[int, ...], names: list[str], points: int) -> CurveList:
        asked.append(tuple(runs))
        return CurveList(curves=tuple(Curve(run=one, name=name) for one in runs for name in names))

    service: Any = SimpleNamespace(curves=curves)
    runs = (run(1, "acc", "loss"), run(2), run(3, "acc"), *(run(number, "loss") for number in range(4, 30)))
    found = {curve.run: curve.name for curve in small_curves(service, runs)}
    assert found == {1: "loss", 3: "acc", **dict.fromkeys(range(4, 30), "loss")}
    assert [len(one) for one in asked] == [20, 8]


def test_only_what_is_about_runs_goes_to_pages() -> None:
    origin = NotebookCell(cell="c", notebook="a.ipynb")
    told = change("job", job(JobState.RUNNING).model_copy(update={"origin": origin}).model_dump_json())
    assert told is not None
    assert told["state"] == "running"
    assert "owner" not in told
    assert change("metrics", METRICS.model_dump_json()) == METRICS.model_dump(mode="json")
    assert change("nodes", "{}") is None


class Page:
    """Collects what it is told; as long as it is slow, it takes nothing."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.slow = False

    def tell(self, message: dict[str, Any]) -> bool:
        if not self.slow:
            self.told.append(message["runs"])
        return not self.slow


class Events(BaseHTTPRequestHandler):
    """Sends one event, then closes the connection; the second connection stays open."""

    hold: threading.Event

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(f": listening\n\nevent: metrics\ndata: {METRICS.model_dump_json()}\n\n".encode())
        self.wfile.flush()
        self.hold.wait(20)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[JobServiceClient]:
    hold = threading.Event()
    handler = type("Held", (Events,), {"hold": hold})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = JobServiceClient(f"http://127.0.0.1:{server.server_port}/", "ada-token")
    yield made
    hold.set()
    made.close()
    server.shutdown()
    server.server_close()


def test_changes_begin_with_a_request_to_load(service: JobServiceClient) -> None:
    found = changes(service, lambda: False)
    assert next(found) == (OPENED, "{}")
    assert next(found) == ("metrics", METRICS.model_dump_json())


async def test_all_pages_share_one_connection_and_a_slow_page_loads_again(service: JobServiceClient) -> None:
    clusters: Any = SimpleNamespace(addresses=lambda: ["/mc/"], service=lambda address: service)
    watched, first, second = WatchedRuns(clusters), Page(), Page()
    watched.watch(first)
    watched.watch(first)
    await eventually(lambda: len(first.told) == 2)
    assert [one["event"] for one in first.told] == [OPENED, "metrics"]
    watched.watch(second)
    assert [one["event"] for one in second.told] == [OPENED]
    assert sum(one.name == "minicluster-runs" for one in threading.enumerate()) == 1
    second.slow = True
    watched._publish("job", {})
    second.slow = False
    watched._publish("job", {})
    watched._publish("job", {})
    assert [one["event"] for one in second.told] == [OPENED, OPENED, "job"]
    for page in (first, second):
        watched.leave(page)
    await asyncio.sleep(0)
