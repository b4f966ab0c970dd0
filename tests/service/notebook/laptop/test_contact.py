"""A notebook behind a restarted proxy that has no route to the service yet."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import httpx
import pytest

from minicluster.capture.payload import CellPayload
from minicluster.client.client import JobServiceClient
from minicluster.client.sse import ConnectionStatus, Ended, follow
from minicluster.wire import CountRange, JobSpec, JobState, LogChunk

SOURCE = (
    "import time\nfrom pathlib import Path\nfor i in range(100):\n    print('line', i, flush=True)\n"
    "    time.sleep(0.02)\n    while i == 50 and not Path({go!r}).exists(): time.sleep(0.01)"
)


class Proxy(ThreadingHTTPServer):
    """A fake proxy: it forwards, or answers like a proxy without routes, as the test chooses."""

    daemon_threads = True

    def __init__(self, url):
        super().__init__(("127.0.0.1", 0), Passing)
        parts = urlsplit(url)
        self.behind = f"http://{parts.netloc}"
        self.url = f"http://127.0.0.1:{self.server_port}{parts.path}"
        self.unrouted = 0
        self.open = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def restart(self, unrouted):
        """Cut all connections, and have no route for so many requests."""
        self.unrouted = unrouted
        for handler in list(self.open):
            handler.cut = True


class Passing(BaseHTTPRequestHandler):
    cut = False

    def do_GET(self):
        if self.server.unrouted:
            self.server.unrouted -= 1
            body = b"<html>404: Not Found</html>"
            self.send_response(404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.server.open.append(self)
        length = int(self.headers.get("Content-Length", 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        with httpx.stream(
            self.command,
            self.server.behind + self.path,
            headers=headers,
            content=self.rfile.read(length),
            timeout=60,
        ) as answer:
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Connection", "close")
            self.end_headers()
            for piece in answer.iter_raw():
                if self.cut:
                    break
                self.wfile.write(piece)
                self.wfile.flush()
        self.close_connection = True

    do_POST = do_PUT = do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def proxy(cluster):
    made = Proxy(cluster.url)
    yield made
    made.shutdown()
    made.server_close()


def test_a_proxy_without_routes_is_waited_for(proxy, tmp_path):
    service = JobServiceClient(proxy.url, "ada-token", retry_for_s=10)
    go = tmp_path / "go"
    blob = service.put_blob(CellPayload(SOURCE.format(go=str(go)), "Cell In[1]", pull=()).to_bytes())
    proxy.restart(unrouted=2)
    job = service.submit(JobSpec(payload_sha256=blob.sha256, nodes=CountRange(min=1, max=1)))
    text, states = "", []
    for event in follow(service, job.id):
        if isinstance(event, LogChunk):
            text += event.text
        if isinstance(event, ConnectionStatus):
            states.append(event)
        if isinstance(event, Ended):
            assert event.job.state is JobState.SUCCEEDED
        if "line 20" in text and not go.exists():
            proxy.restart(unrouted=3)
            go.touch()
    assert text == "".join(f"line {i}\n" for i in range(100))
    assert any("404" in event.lost for event in states)
    assert states[-1].lost == ""
    assert states[-1].disconnected_s >= states[0].disconnected_s
    service.close()
