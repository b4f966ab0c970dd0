"""A job's event stream, from a server that sends scripted events."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from minicluster.client.client import JobServiceClient
from minicluster.client.sse import Ended, follow
from minicluster.wire import JobState, LogChunk

from ..display.test_render import job, output

SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\r"
TEXT = f"one{SEPARATORS}two\n"


END = job(JobState.SUCCEEDED).model_dump_json()


class Events(BaseHTTPRequestHandler):
    body = f"event: log\ndata: {output(TEXT).model_dump_json()}\n\nevent: end\ndata: {END}\n\n".encode()

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        for start in range(0, len(self.body), 3):  # Cuts are within characters and lines.
            self.wfile.write(self.body[start : start + 3])

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Events)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = JobServiceClient(f"http://127.0.0.1:{server.server_port}/", "ada-token")
    yield made
    made.close()
    server.shutdown()
    server.server_close()


def test_a_quiet_stream_ends_when_nobody_wants_it(service, monkeypatch):
    """A waiting job has only comments, and no events, for hours."""
    wanted = iter((True, False))
    monkeypatch.setattr(Events, "body", b": keep-alive\n\n" * 2)
    assert list(follow(service, 7, lambda: not next(wanted, False))) == []


def test_what_python_takes_for_an_end_of_a_line_may_stand_in_the_output(service):
    log, end = follow(service, 7)
    assert isinstance(log, LogChunk) and log.text == TEXT
    assert isinstance(end, Ended)
