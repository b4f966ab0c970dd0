"""A job's events as they come over the wire, from a server that says what the job service would."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from minicluster.client.client import Service
from minicluster.client.sse import Ended, follow, whole_lines
from minicluster.wire import JobState, LogChunk

from ..display.test_render import job, said

SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\r"
TEXT = f"one{SEPARATORS}two\n"


class Events(BaseHTTPRequestHandler):
    def do_GET(self):
        end = job(JobState.SUCCEEDED).model_dump_json()
        body = f"event: log\ndata: {said(TEXT).model_dump_json()}\n\nevent: end\ndata: {end}\n\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Events)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = Service(f"http://127.0.0.1:{server.server_port}/", "ada-token")
    yield made
    made.close()
    server.shutdown()
    server.server_close()


def test_what_python_takes_for_an_end_of_a_line_may_stand_in_the_output(service):
    log, end = follow(service, 7)
    assert isinstance(log, LogChunk) and log.text == TEXT
    assert isinstance(end, Ended)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_are_whole_wherever_they_were_cut(size):
    text = f"a\nb{SEPARATORS}c\n\nd\r\nhalf"
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert list(whole_lines(pieces)) == ["a", f"b{SEPARATORS}c", "", "d"]
