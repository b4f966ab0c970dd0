"""A notebook's shell on a whole cluster: the job service as a process, real agents, real ranks."""

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
import pytest
from IPython.core.interactiveshell import InteractiveShell

from minicluster.client.client import JobServiceClient
from minicluster_hub.engines.local.task_memory import TaskMemory
from minicluster_hub.support.processes import signal_all

from ...patience import WITHIN_S

PREFIX = "/services/minicluster/"


class HubUser(BaseHTTPRequestHandler):
    """A fake hub that returns a token's user; tests/hub has a real one."""

    def do_GET(self):
        name = self.headers.get("Authorization", "").removeprefix("token ").removesuffix("-token")
        scopes = [f"custom:minicluster:{what}!user={name}" for what in ("read", "submit")]
        known = name in ("ada", "bob")
        model = {"name": name, "kind": "user", "admin": False, "groups": [], "scopes": scopes}
        body = json.dumps(model).encode() if known else b"{}"
        self.send_response(200 if known else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Cluster:
    """The job service as a process, which tests can kill and restart."""

    program = ("-m", "minicluster_hub")

    def __init__(self, folder, hub_url, *options):
        self.folder = folder
        self._options = options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}{PREFIX}"
        self._environ = {
            **os.environ,
            "JUPYTERHUB_API_TOKEN": "the-services-own",
            "JUPYTERHUB_API_URL": hub_url,
            "JUPYTERHUB_BASE_URL": "/",
            "JUPYTERHUB_CLIENT_ID": "service-minicluster",
            "JUPYTERHUB_SERVICE_NAME": "minicluster",
            "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{self.port}",
        }
        self.start()

    def start(self):
        command = [sys.executable, *self.program, "--data-dir", str(self.folder), *self._options]
        with (self.folder / "service.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=self._environ, stdout=log, stderr=log)
        end = time.monotonic() + WITHIN_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                httpx.get(f"{self.url}health").raise_for_status()
                return
            except httpx.HTTPError:
                time.sleep(0.05)
        raise AssertionError((self.folder / "service.log").read_text())

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            # Agents outlive their service by design; they are found by the service's address.
            signal_all(self.tasks())
            TaskMemory(self.folder.resolve() / "tasks").sweep(())

    def tasks(self):
        for process in psutil.process_iter():
            try:
                if process.environ().get("MINICLUSTER_SERVICE_URL") == self.url:
                    yield process
            except psutil.Error:
                continue


@pytest.fixture(scope="session")
def hub_url():
    hub = ThreadingHTTPServer(("127.0.0.1", 0), HubUser)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{hub.server_port}/hub/api"
    hub.shutdown()
    hub.server_close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory, hub_url):
    made = Cluster(tmp_path_factory.mktemp("cluster"), hub_url)
    yield made
    made.end()


@pytest.fixture
def cluster_on_postgresql(tmp_path, hub_url, postgres_url):
    made = Cluster(tmp_path, hub_url, "--db-url", postgres_url)
    yield made
    made.end()


@pytest.fixture
def service(cluster):
    opened = JobServiceClient(cluster.url, "ada-token", retry_for_s=2)
    yield opened
    opened.close()


class Notebook:
    """IPython's own shell with the extension, as in a terminal."""

    def __init__(self, shell):
        self.shell = shell

    @property
    def names(self):
        return self.shell.user_ns

    def run(self, source):
        """Run a cell; return its value, or raise the error that the notebook would show."""
        result = self.shell.run_cell(source, store_history=True)
        result.raise_error()
        return result.result

    def fails(self, source, kind):
        """Run a cell that must fail with this kind of error; return the error."""
        result = self.shell.run_cell(source, store_history=True)
        assert isinstance(result.error_in_exec, kind), result
        return result.error_in_exec


@pytest.fixture
def notebook(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("MINICLUSTER_URL", cluster.url)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "ada-token")
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    main = sys.modules["__main__"]
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(colors="nocolor")
    shell.run_line_magic("load_ext", "minicluster")
    yield Notebook(shell)
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main
