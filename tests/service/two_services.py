"""Two job services as processes, with one PostgreSQL and one data folder, and their agents."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import psutil

from minicluster_hub.support.processes import signal_all

from ..patience import WITHIN_S

PREFIX = "/services/minicluster/"
LED_NO_MORE = 75


class HubUser(BaseHTTPRequestHandler):
    """A fake hub that returns a token's user; root is an administrator. tests/hub has a real one."""

    def do_GET(self):
        name = self.headers.get("Authorization", "").removeprefix("token ").removesuffix("-token")
        scopes = [f"custom:minicluster:{what}!user={name}" for what in ("read", "submit")]
        scopes += ["custom:minicluster:admin"] if name == "root" else []
        model = {"name": name, "kind": "user", "admin": False, "groups": [], "scopes": scopes}
        body = json.dumps(model).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class OneService:
    """One of the two services; it is restarted when it ends, as Swarm or the hub would."""

    def __init__(self, name, folder, port, environ, options):
        self.name, self.port = name, port
        self.url = f"http://127.0.0.1:{port}{PREFIX}"
        self.log = folder.parent / f"{name}.log"
        self._command = [sys.executable, "-m", "minicluster_hub", f"--data-dir={folder}", *options]
        self._environ = {**environ, "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}"}
        self._kept = True
        self.start()
        self._data_agent = threading.Thread(target=self._keep, daemon=True)
        self._data_agent.start()

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=self._environ, stdout=log, stderr=log)

    def _keep(self):
        while self._kept:
            self.process.wait()
            if self._kept:
                time.sleep(0.2)
                self.start()

    def send(self, number):
        self.process.send_signal(number)

    def end(self):
        self._kept = False
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self._data_agent.join(20)
        self.process.kill()
        self.process.wait(10)


class TwoServices:
    """`one` and `two`, their hub, and the agents."""

    def __init__(self, folder, database_url):
        self.folder = folder / "data"
        self.folder.mkdir()
        self._hub = ThreadingHTTPServer(("127.0.0.1", 0), HubUser)
        threading.Thread(target=self._hub.serve_forever, daemon=True).start()
        environ = {
            **os.environ,
            "JUPYTERHUB_API_TOKEN": "the-services-own",
            "JUPYTERHUB_API_URL": f"http://127.0.0.1:{self._hub.server_port}/hub/api",
            "JUPYTERHUB_BASE_URL": "/",
            "JUPYTERHUB_CLIENT_ID": "service-minicluster",
            "JUPYTERHUB_SERVICE_NAME": "minicluster",
            "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
        }
        ports = free_port(), free_port()
        urls = [f"http://127.0.0.1:{port}{PREFIX}" for port in ports]
        options = [f"--db-url={database_url}", *(f"--MiniclusterHub.task_urls={url}" for url in urls)]
        self.services = [
            OneService(name, self.folder, port, environ, options)
            for name, port in zip(("one", "two"), ports, strict=True)
        ]

    def close(self):
        for service in self.services:
            service.end()
        signal_all(self.tasks())
        self._hub.shutdown()
        self._hub.server_close()

    def leader(self, timeout_s=WITHIN_S):
        """Wait until one service leads; return it, then the other one."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            for service in self.services:
                if self.leads(service):
                    return service, next(other for other in self.services if other is not service)
            time.sleep(0.05)
        raise AssertionError("\n\n".join(service.log.read_text()[-6000:] for service in self.services))

    def leads(self, service):
        """Whether a service leads: to a request without a token, the leader answers 401, the standby 503."""
        try:
            headers = {"Minicluster-Wire": "1"}
            answer = httpx.get(f"{service.url}api/tasks/orders", headers=headers, timeout=1)
        except httpx.HTTPError:
            return False
        return answer.status_code == 401

    def tasks(self):
        for process in psutil.process_iter():
            try:
                if process.environ().get("MINICLUSTER_DATA") == str(self.folder):
                    yield process
            except psutil.Error:
                continue
