"""Messages about an address with another service or none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from minicluster.client.address import understand
from minicluster.client.certificates import CertificateUnknown, by_fingerprint
from minicluster.client.reach import HubNotFound, find_hub

from ... import messages


class Other(BaseHTTPRequestHandler):
    """Another web application, whose errors are JSON, too."""

    def do_GET(self) -> None:
        body = b'{"error": "Not Found"}'
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_another_application_is_told_from_a_hub(other: str) -> None:
    with pytest.raises(HubNotFound, match=rf"{messages.NO_JUPYTERHUB} .* \(HTTP 404\)"):
        find_hub(understand(other), None)


def test_a_fingerprint_for_an_address_where_nobody_is() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(CertificateUnknown, match="Connection refused") as caught:
        by_fingerprint(understand(f"https://127.0.0.1:{port}"), "AB")
    assert "browser" in caught.value.hint
