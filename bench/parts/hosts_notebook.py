"""A notebook and the job service on one host, for bench/transfer.py: sends a model, and changes it.

Arguments: the namespaces of the nodes' hosts, this host's address, the model's MB, rounds. Prints a line of
JSON per round.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

PREFIX = "/services/minicluster/"
SIDE = 1000
MODEL = "import torch\nmodel = torch.nn.ParameterList(torch.randn({side}, {side}) for _ in range({layers}))"
NOTHING = "%%distribute --nodes 3 --pull done\nimport time\ndone = time.time()"
READ = "%%distribute --nodes 3 --pull done\nimport time\nassert len(model)\ndone = time.time()"
CHANGE = "%%distribute --nodes 3\nwith torch.no_grad():\n    {which}.add_(1)"
ONE, ALL = "model[0]", "[layer.add_(1) for layer in model][0]"


class HubUser(BaseHTTPRequestHandler):
    """A fake hub with one user."""

    def do_GET(self) -> None:
        scopes = [f"custom:minicluster:{what}!user=ada" for what in ("read", "submit")]
        model = {"name": "ada", "kind": "user", "admin": False, "groups": [], "scopes": scopes}
        body = json.dumps(model).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running_service(folder: Path, hosts: str, address: str) -> Iterator[str]:
    """Run a hub and a job service on this host; yield the service's URL."""
    hub = ThreadingHTTPServer(("127.0.0.1", 0), HubUser)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    with socket.socket() as free:
        free.bind((address, 0))
        port = free.getsockname()[1]
    url = f"http://{address}:{port}{PREFIX}"
    environ = {
        "JUPYTERHUB_API_TOKEN": "the-services-own",
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub.server_port}/hub/api",
        "JUPYTERHUB_BASE_URL": "/",
        "JUPYTERHUB_CLIENT_ID": "service-minicluster",
        "JUPYTERHUB_SERVICE_NAME": "minicluster",
        "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
        "JUPYTERHUB_SERVICE_URL": f"http://{address}:{port}",
    }
    words = [
        sys.executable,
        str(Path(__file__).with_name("hosts_service.py")),
        hosts,
        "--data-dir",
        str(folder),
    ]
    with (folder / "service.log").open("ab") as log:
        service = subprocess.Popen(words, env=os.environ | environ, stdout=log, stderr=log)
    try:
        _wait_for(url, service, folder / "service.log")
        yield url
    finally:
        service.kill()
        # Agents outlive their service by design.
        for process in psutil.process_iter():
            try:
                if process.environ().get("MINICLUSTER_SERVICE_URL") == url:
                    process.kill()
            except psutil.Error:
                continue


def _wait_for(url: str, service: subprocess.Popen[bytes], log: Path) -> None:
    while service.poll() is None:
        try:
            httpx.get(f"{url}health", trust_env=False).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise SystemExit(log.read_text())


class Notebook:
    """IPython's own shell; measures what a cell sends over this host's cable, and what comes back."""

    def __init__(self) -> None:
        self.shell = InteractiveShell.instance(
            colors="nocolor", config=Config(HistoryManager={"hist_file": ":memory:"})
        )
        self.shell.run_line_magic("load_ext", "minicluster")
        self.back_bytes = 0

    def run(self, source: str) -> None:
        self.shell.run_cell(source).raise_error()

    def timed(self, source: str) -> dict[str, float]:
        """Run a cell; return the seconds until `done` and until its names are back, and the bytes sent."""
        sent, self.back_bytes, began = _sent_bytes(), 0, time.time()
        self.run(source)
        ended = time.time()
        return {
            "done_s": self.shell.user_ns.get("done", ended) - began,
            "back_s": ended - began,
            "sent_bytes": _sent_bytes() - sent,
            "back_bytes": self.back_bytes,
        }

    def count_results(self) -> None:
        """Count the bytes of results."""
        import minicluster.cell_run as cells

        opened = cells._opened_result

        def counting(file: Any, *more: Any) -> Any:
            self.back_bytes = file.seek(0, os.SEEK_END)
            return opened(file, *more)

        cells._opened_result = counting


def _sent_bytes() -> int:
    return psutil.net_io_counters(pernic=True)["eth0"].bytes_sent


def measure(notebook: Notebook, mb: int) -> dict[str, dict[str, float]]:
    """Run one round: a new model, the same again, one layer changed, all of them."""
    # A matrix has 4 bytes for each number.
    notebook.run(MODEL.format(side=SIDE, layers=mb * 1_000_000 // (4 * SIDE * SIDE)))
    found = {"nothing": notebook.timed(NOTHING), "first": notebook.timed(READ), "again": notebook.timed(READ)}
    for name, which in (("one", ONE), ("all", ALL)):
        notebook.shell.user_ns.pop("done", None)
        found[name] = notebook.timed(CHANGE.format(which=which))
    return found


def main(hosts: str, address: str, mb: int, rounds: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        running_service(Path(folder), hosts, address) as url,
    ):
        os.environ.update(MINICLUSTER_URL=url, JUPYTERHUB_API_TOKEN="ada-token", JUPYTERHUB_USER="ada")
        os.environ["IPYTHONDIR"] = f"{folder}/ipython"
        notebook = Notebook()
        notebook.count_results()
        notebook.run(NOTHING)
        for _ in range(rounds):
            # The shell prints to stdout, too.
            print("\nROUND", json.dumps(measure(notebook, mb)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
