"""Servers at an address to which a user connects: TLS in front of the service, or other servers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from minicluster_hub.cluster.plan.certificates import Certificates, make_ca_and_cert


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class TlsFront:
    """Accepts TLS connections and forwards their data to a plain port, as a proxy does."""

    def __init__(self, folder: Path, target: int, names: tuple[str, ...] = ("127.0.0.1",)) -> None:
        self.certificates: Certificates = make_ca_and_cert(names)
        pem = folder / "front.pem"
        pem.write_text(self.certificates.cert_pem + self.certificates.key_pem)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pem)
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), plain:
            secured = self._context.wrap_socket(plain, server_side=True)
            behind = socket.create_connection(("127.0.0.1", self._target))
            back = threading.Thread(target=_copy, args=(behind, secured), daemon=True)
            back.start()
            _copy(secured, behind)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def answering(answers: dict[str, tuple[int, dict[str, str], str]]) -> Iterator[str]:
    """Run a web server with these answers (status, headers, body) by path, and 404 for other paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answers.get(self.path, (404, {}, "<h1>Not here</h1>"))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
