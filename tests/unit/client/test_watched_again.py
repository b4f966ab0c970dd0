"""A panel opened while the job service is away: it becomes live once the service is back."""

import threading
import time
from http.server import ThreadingHTTPServer

import pytest

from minicluster.client.client import JobServiceClient
from minicluster.server_extension.watched_jobs import JobKey, WatchedJob
from minicluster.wire import ErrorAnswer, ErrorDetail

from ..display.test_render import job
from .test_event_stream import Events


class Takeover(Events):
    """A service that answers for some time that no service leads."""

    def do_GET(self):
        if self.path.endswith("/events"):
            super().do_GET()
        elif self.server.no_leader:
            reply = ErrorAnswer(error=ErrorDetail(code="no_leader", message="no job service leads"))
            self.answer(503, reply.model_dump_json())
        else:
            self.answer(200, job().model_dump_json())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


class Page:
    def __init__(self):
        self.told = []

    def tell(self, message):
        self.told.append(message)
        return True


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Takeover)
    made.no_leader = True
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_a_panel_that_met_no_service_is_live_once_there_is_one(server, monkeypatch):
    monkeypatch.setattr("minicluster.server_extension.watched_jobs._AGAIN_AFTER_S", 0.1)
    service = JobServiceClient(f"http://127.0.0.1:{server.server_port}/", "ada-token", retry_for_s=0.2)
    page, watched = Page(), WatchedJob(JobKey("/here/", 7, 0.0))
    watched.add(page)
    threading.Thread(target=watched.follow, args=(lambda address: service,), daemon=True).start()

    def publish_until(reached):
        end = time.monotonic() + 30
        while not reached():
            assert time.monotonic() < end
            watched.publish(time.time())
            time.sleep(0.02)

    publish_until(lambda: page.told)
    assert page.told[0]["refused"] == {"message": "no job service leads", "code": "unreachable"}
    server.no_leader = False
    publish_until(lambda: page.told[-1].get("change", {}).get("head", {}).get("terminal"))
    changes = [message["change"] for message in page.told if "change" in message]
    # A new page needs the full state first; changes before it are useless.
    assert changes[0]["full"]
    shown = [entry for change in changes for entry in change.get("ranks", {}).get("0", {}).get("entries", ())]
    assert "two" in "".join(map(str, shown))
    service.close()
