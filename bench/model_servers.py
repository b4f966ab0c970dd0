"""Servers for models, measured in environments that were made by hand: size, start, requests.

`--environments FOLDER` has a virtual environment for each server, by its name (litserve, bentoml, ray,
mlserver): python -m venv FOLDER/bentoml && FOLDER/bentoml/bin/pip install bentoml numpy. Those that are
missing are left out. Each serves a function that doubles 64 numbers, without torch, so that the servers alone
are compared. Prints a table for docs/serving.md. Only ratios of one run count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from parts.http_crowd import Crowd, Question, ask_all

CLIENTS = (1, 16)
READY_S = 120.0
NUMBERS = [0.5] * 64
_V2 = {"inputs": [{"name": "x", "shape": [64], "datatype": "FP64", "data": NUMBERS}]}


@dataclass(frozen=True)
class Server:
    """A server. files: by name, in its folder. command: without the Python; PORT stands for the port."""

    files: dict[str, str]
    command: tuple[str, ...]
    path: str
    body: bytes


LITSERVE = """
import sys, litserve
class Double(litserve.LitAPI):
    def setup(self, device): pass
    def predict(self, x): return [2 * one for one in x]
if __name__ == "__main__":
    litserve.LitServer(Double(), accelerator="cpu", devices=1).run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False,
        access_log=False)
"""
BENTOML = """
import bentoml
@bentoml.service(workers=1)
class Double:
    @bentoml.api(route="/predict")
    def predict(self, x: list[float]) -> list[float]:
        return [2 * one for one in x]
"""
RAY = """
import sys, time
from ray import serve
@serve.deployment(num_replicas=1)
class Double:
    async def __call__(self, request):
        return [2 * one for one in await request.json()]
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
serve.run(Double.bind(), route_prefix="/predict")
while True:
    time.sleep(1)
"""
MLSERVER = """
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
class Double(MLModel):
    async def load(self): return True
    async def predict(self, payload):
        x = NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", 2 * x)])
"""
PLAIN = json.dumps(NUMBERS).encode()
SERVERS = {
    "litserve": Server({"double.py": LITSERVE}, ("double.py", "PORT"), "/predict", PLAIN),
    "bentoml": Server(
        {"service.py": BENTOML},
        ("-m", "bentoml", "serve", "service:Double", "--host", "127.0.0.1", "--port", "PORT"),
        "/predict",
        json.dumps({"x": NUMBERS}).encode(),
    ),
    "ray": Server({"double.py": RAY}, ("double.py", "PORT"), "/predict", PLAIN),
    "mlserver": Server(
        {
            "double.py": MLSERVER,
            "model-settings.json": json.dumps({"name": "double", "implementation": "double.Double"}),
            "settings.json": json.dumps({"http_port": "PORT", "parallel_workers": 0}),
        },
        ("-c", "from mlserver.cli import main; main()", "start", "."),
        "/v2/models/double/infer",
        json.dumps(_V2).encode(),
    ),
}


class NoAnswer(Exception):
    """A server that does not come up."""


@dataclass(frozen=True)
class Measured:
    size_mb: float
    start_s: float
    memory_mb: float
    crowds: dict[int, list[Crowd]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--environments", type=Path, required=True, help="folder with a virtual environment each"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    found = {name: given.environments / name / "bin" / "python" for name in SERVERS}
    there = {name: python for name, python in found.items() if python.exists()}
    if not there:
        sys.exit(f"{given.environments} has none of {', '.join(SERVERS)}")
    results = {name: measure(name, python, given.rounds, given.seconds) for name, python in there.items()}
    print(table({name: found for name, found in results.items() if found is not None}))
    if failed := [name for name, found in results.items() if found is None]:
        sys.exit(f"twice, these did not answer: {', '.join(failed)}")


def measure(name: str, python: Path, rounds: int, seconds: float) -> Measured | None:
    """Return what was measured of a server; None if it did not answer, twice."""
    for _ in range(2):
        try:
            return measured(name, python, rounds, seconds)
        except NoAnswer as error:
            print(error, file=sys.stderr)
    return None


def measured(name: str, python: Path, rounds: int, seconds: float) -> Measured:
    """Return what was measured of a server. Raises NoAnswer."""
    with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder:
        began = time.monotonic()
        with running(SERVERS[name], python, Path(folder)) as (url, process):
            start_s = time.monotonic() - began
            question = Question(url, SERVERS[name].body)
            crowds = {
                clients: [asyncio.run(ask_all(question, clients, seconds)) for _ in range(rounds)]
                for clients in CLIENTS
            }
            memory = sum(one.memory_info().rss for one in family(process)) / 1e6
    return Measured(size_of(python.parents[1]), start_s, memory, crowds)


@contextmanager
def running(server: Server, python: Path, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a server; yield its URL once it answers. Raises NoAnswer with the end of what it printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for name, text in server.files.items():
        (folder / name).write_text(text.replace('"PORT"', port))
    words = [str(python), *(port if word == "PORT" else word for word in server.command)]
    log = folder / "server.log"
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, cwd=folder, env=environ, start_new_session=True, stdout=output, stderr=subprocess.STDOUT
        )
    url = f"http://127.0.0.1:{port}{server.path}"
    try:
        until = time.monotonic() + READY_S
        while not asyncio.run(ask_all(Question(url, server.body), 1, 0.2)).times_s:
            if time.monotonic() > until or process.poll() is not None:
                raise NoAnswer(f"{words} does not answer: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield url, process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs(family(process), 10)
        for one in alive:
            with suppress(psutil.Error):
                one.kill()


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with suppress(psutil.Error):
        first = psutil.Process(process.pid)
        return [first, *first.children(recursive=True)]
    return []


def size_of(environment: Path) -> float:
    """Return the megabytes of an environment's packages."""
    return sum(path.stat().st_size for path in environment.rglob("*") if path.is_file()) / 1e6


def table(results: dict[str, Measured]) -> str:
    """Return the rows of the table of docs/serving.md, measured."""
    heads = ["server", "packages MB", "memory MB", "start s"]
    heads += [f"{what} at {clients}" for clients in CLIENTS for what in ("p50 ms", "requests/s")]
    rows = [heads, ["---"] * len(heads)]
    for name, one in results.items():
        row = [name, f"{one.size_mb:.0f}", f"{one.memory_mb:.0f}", f"{one.start_s:.1f}"]
        for clients in CLIENTS:
            crowds = one.crowds[clients]
            row.append(f"{1e3 * statistics.median(crowd.percentile(0.5) for crowd in crowds):.2f}")
            row.append(f"{statistics.median(crowd.per_s for crowd in crowds):.0f}")
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    main()
