"""What a GPU costs through Minicluster: the first step of a warm cell, and mc.prepare in each step.

Runs wherever torch finds a CUDA GPU, without a hub and without a network: a notebook's shell, the job
service, an agent, one rank (tests/gpu/wheels.py makes the wheels). Without a GPU the same code runs on
the CPU, the figures say nothing about GPUs, and the targets are `skipped`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from parts.targets import Target, close

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

FIRST_STEP_BOUND_S = 0.5
"""From the cell's start in the notebook until the GPU has done the first training step."""
PREPARE_BOUND = 1.01
"""A step of what mc.prepare returned, relative to the same step of plain torch in the same rank."""
FIRST_STEP = """
import time, torch
import minicluster as mc
_model = torch.nn.Linear(512, 512)
_model, _optimizer = mc.prepare(_model, torch.optim.SGD(_model.parameters(), lr=0.1))
_began = time.time()
_model(torch.rand(64, 512, device=mc.device())).square().mean().backward()
_optimizer.step()
if torch.cuda.is_available():
    torch.cuda.synchronize()
done, step_s = time.time(), time.time() - _began
"""
STEPS = """
import copy, statistics, time, torch
import minicluster as mc
device = mc.device()

def made():
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(8)]
    return torch.nn.Sequential(*layers)

def step(model, optimizer, batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()

def block(*what):
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step(*what)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps

source = made()
plain = copy.deepcopy(source).to(device)
plain = plain, torch.optim.SGD(plain.parameters(), lr=1e-4), torch.rand(batch, width, device=device)
ours = (*mc.prepare(source, torch.optim.SGD(source.parameters(), lr=1e-4)), plain[2])
for what in (plain, ours):
    block(*what)
pairs = []
for number in range(rounds):  # in turn, and each first as often as the other: the clock of a GPU changes
    first, second = (plain, ours) if number % 2 else (ours, plain)
    took = block(*first), block(*second)
    pairs.append(took if number % 2 else took[::-1])
plain_s = statistics.median(one for one, _ in pairs)
ratio = statistics.median(two / one for one, two in pairs)
"""

Run = Callable[[str], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="first steps of each kind; the median counts")
    parser.add_argument("--blocks", type=int, default=40, help="blocks of steps, plain and prepared in turn")
    given = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    seen = torch.cuda.get_device_name() if on_gpu else "no GPU was seen: on the CPU"
    print(f"{seen}, torch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder, notebook(Path(folder)) as shell:
        targets = measure(shell, given.rounds, given.blocks, on_gpu=on_gpu)
    if on_gpu:
        close(targets)
    for target in targets:
        print(f"{target.name} {target.value:.3f} {target.bound:.3f} skipped (no GPU was seen)")


def measure(shell: Any, rounds: int, blocks: int, *, on_gpu: bool) -> list[Target]:
    shell.run(f"%%distribute --nodes 1\n{FIRST_STEP}")  # cold: the zygote imports torch
    warm_s = first_steps(shell, rounds)
    sizes = (2048, 512, 50) if on_gpu else (128, 64, 10)
    shell.run(f"width, batch, steps = {sizes}\nrounds = {blocks}")
    shell.run(f"%%distribute --nodes 1 --pull plain_s,ratio\n{STEPS}")
    names = shell.names
    print(f"a plain step: {1e3 * names['plain_s']:.3f} ms; prepared: {names['ratio']:.4f} times as long")
    ratio = names["ratio"]
    session_s = [session_first_step(shell) for _ in range(rounds)]
    return [
        Target("gpu_warm_cell_to_first_step_s", statistics.median(warm_s), FIRST_STEP_BOUND_S),
        Target("gpu_session_cell_to_first_step_s", statistics.median(session_s), FIRST_STEP_BOUND_S),
        Target("gpu_prepared_step_ratio", ratio, PREPARE_BOUND),
    ]


def first_steps(shell: Any, rounds: int) -> list[float]:
    """Return the seconds to the first step of cells on a warm gang: each cell has a new rank."""
    found = []
    for _ in range(rounds):
        began = time.time()
        shell.run(f"%%distribute --nodes 1 --pull done,step_s\n{FIRST_STEP}")
        found.append(shell.names["done"] - began)
        print(f"warm cell: {found[-1]:.3f} s, of which the step {shell.names['step_s']:.3f} s", flush=True)
    return found


def session_first_step(shell: Any) -> float:
    """Return the same for the first cell of a session, whose rank has its context from `up` on."""
    shell.run("%distribute up --nodes 1")
    began = time.time()
    shell.run(f"%%distribute --pull done,step_s\n{FIRST_STEP}")
    took_s = shell.names["done"] - began
    print(
        f"first cell of a session: {took_s:.3f} s, of which the step {shell.names['step_s']:.3f} s",
        flush=True,
    )
    shell.run("%distribute down")
    return took_s


@contextmanager
def notebook(folder: Path) -> Iterator[Any]:
    """A notebook's shell, beside a job service with the engine local; only the hub is simulated."""
    from IPython.core.interactiveshell import InteractiveShell
    from tests.service.notebook.conftest import Cluster, HubUser, Notebook
    from traitlets.config import Config

    hub = ThreadingHTTPServer(("127.0.0.1", 0), HubUser)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    cluster = Cluster(folder, f"http://127.0.0.1:{hub.server_port}/hub/api")
    os.environ.update(
        MINICLUSTER_URL=cluster.url,
        JUPYTERHUB_API_TOKEN="ada-token",
        JUPYTERHUB_USER="ada",
        IPYTHONDIR=str(folder / "ipython"),
    )
    before = Path.cwd()
    os.chdir(folder)
    shell = InteractiveShell.instance(colors="nocolor", config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_line_magic("load_ext", "minicluster")
    try:
        yield Notebook(shell)
    finally:
        os.chdir(before)
        cluster.end()
        hub.shutdown()


if __name__ == "__main__":
    main()
