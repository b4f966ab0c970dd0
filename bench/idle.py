"""The CPU time and memory of an idle Minicluster, and the time of its second start.

The cluster has three open notebooks; each tab has loaded JupyterLab's scripts through the proxy, and polls
its notebook server as often as JupyterLab does. Measures the hub, its proxy, the job service, and all other
processes of the data folder except users' notebook servers. Then starts again on the same data, as `./run`
does if all is installed. Prints a table and one line per target.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from notebook import Cluster, Notebook, running_cluster
from parts.targets import Target, close

from minicluster_hub.launch import ports
from minicluster_hub.support.processes import SERVER_LABEL, find, of_data_folder

TREE = Path(__file__).resolve().parents[1]
NOTEBOOKS = 3
MEMORY_BOUND_MB = 300.0
CPU_BOUND_PERCENT = 2.0
SECOND_START_BOUND_S = 5.0
TAB_ASKS_EVERY_S = 10.0
SCRIPTS = Path(sys.prefix) / "share" / "jupyter" / "lab" / "static"
CONNECTIONS_OF_A_BROWSER = 6
TAB_ASKS = ("api/sessions", "api/kernels", "api/terminals", "api/contents/?content=1")
# ./run without installation: a benchmark must not install anything.
RUN = """\
tree=$MINICLUSTER_TREE
. "$tree/hub_ext/minicluster_hub/launch/setup.sh"
is_ready $run_extras "" 2>/dev/null || true
exec "$0" -P -m minicluster_hub.launch "$@"
"""
PARTS = {
    "minicluster_hub.launch.hub": "hub",
    "configurable-http-proxy": "proxy",
    "minicluster_hub": "job service",
}


@dataclass
class Cost:
    """Memory and CPU time of one part, summed over its processes."""

    processes: int = 0
    rss_mb: float = 0.0
    pss_mb: float = 0.0
    cpu_percent: float = 0.0


Costs = dict[str, Cost]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window-s", type=float, default=60.0, help="how long to look at the idle cluster")
    parser.add_argument("--settle-s", type=float, default=10.0, help="how long to wait before")
    parser.add_argument("--starts", type=int, default=3, help="second starts; the median counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder:
        with running_cluster(Path(folder)) as cluster:
            costs = asyncio.run(idle(cluster, options.settle_s, options.window_s))
        starts_s = [second_start_s(Path(folder) / "data") for _ in range(options.starts)]
    print(table(costs, options.window_s))
    print("\nseconds of a second start, until the login page is there:", *(f"{s:.2f}" for s in starts_s))
    print()
    close(targets(costs, statistics.median(starts_s)))


async def idle(cluster: Cluster, settle_s: float, window_s: float) -> Costs:
    """Open the notebooks, wait until they are idle, and measure."""
    async with AsyncExitStack() as opened:
        tabs = []
        for number in range(NOTEBOOKS):
            notebook = await opened.enter_async_context(cluster.notebook(f"idle-{number}.ipynb"))
            await load_page(notebook)
            await notebook.kernel.run("x = 1")
            tabs.append(asyncio.create_task(stay_open(notebook)))
        try:
            await asyncio.sleep(settle_s)
            return await measure(cluster.hub.settings.data_dir, window_s)
        finally:
            for tab in tabs:
                tab.cancel()
            await asyncio.gather(*tabs, return_exceptions=True)


async def load_page(notebook: Notebook) -> None:
    """Fetch JupyterLab's scripts, as a browser with an empty cache does, but do not parse them."""
    gate = asyncio.Semaphore(CONNECTIONS_OF_A_BROWSER)

    async def load(script: Path) -> None:
        async with gate:
            path = f"{notebook.visitor.server_path}static/lab/{script.name}"
            (await notebook.visitor.http.get(path)).raise_for_status()

    await asyncio.gather(*map(load, sorted(SCRIPTS.glob("*.js"))))


async def stay_open(notebook: Notebook) -> None:
    """Send the requests of an idle JupyterLab tab."""
    here = notebook.visitor.server_path
    while True:
        await asyncio.sleep(TAB_ASKS_EVERY_S)
        for path in TAB_ASKS:
            await notebook.visitor.call("GET", f"{here}{path}", here)


async def measure(data_dir: Path, window_s: float) -> Costs:
    """Return each part's memory at the end of the window, and its share of one core during it."""
    processes = {process.pid: process for process in ours(data_dir)}
    began, before = time.monotonic(), {pid: cpu_s(process) for pid, process in processes.items()}
    await asyncio.sleep(window_s)
    took_s = time.monotonic() - began
    costs: Costs = {name: Cost() for name in PARTS.values()}
    for process in ours(data_dir):
        cost = costs.setdefault(part(process), Cost())
        memory = process.memory_full_info()
        cost.processes += 1
        cost.rss_mb += memory.rss / 1e6
        cost.pss_mb += memory.pss / 1e6
        cost.cpu_percent += 100 * (cpu_s(process) - before.get(process.pid, 0.0)) / took_s
    return costs


def ours(data_dir: Path) -> list[psutil.Process]:
    """Return all processes of the data folder except users' notebook servers and kernels."""
    wanted = of_data_folder(data_dir)
    return find(lambda env: wanted(env) and SERVER_LABEL not in env)


def part(process: psutil.Process) -> str:
    arguments = process.cmdline()
    for word in arguments:
        if name := PARTS.get(Path(word).name):
            return name
    return " ".join(arguments)[:40]


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    times = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system


def second_start_s(data_dir: Path) -> float:
    """Time a start on a used data folder, up to the login page."""
    url = f"http://127.0.0.1:{(port := ports.choose_public('127.0.0.1'))}"
    # A user's shell lets Python write its bytecode caches.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = ["bash", "-c", RUN, sys.executable, "--data", str(data_dir), "--port", str(port)]
    began = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**env, "MINICLUSTER_TREE": str(TREE)}
    ) as run:
        try:
            wait_said(run, url)
            if httpx.get(f"{url}/hub/login", trust_env=False).status_code != httpx.codes.OK:
                raise SystemExit(f"{url} shows no login page")
            return time.monotonic() - began
        finally:
            run.send_signal(signal.SIGTERM)
            run.communicate()


def wait_said(run: subprocess.Popen[str], url: str) -> None:
    """Read the output of ./run until it prints the URL."""
    for line in run.stdout or ():
        if url in line:
            return
    raise SystemExit(f"the second start ended with exit code {run.wait()} before it was ready")


def table(costs: Costs, window_s: float) -> str:
    rows = [
        f"{f'idle for {window_s:.0f} s':24}{'processes':>10}{'RSS MB':>10}{'PSS MB':>10}{'% of a core':>13}"
    ]
    for name, cost in {**costs, "together": together(costs)}.items():
        numbers = f"{cost.rss_mb:>10.1f}{cost.pss_mb:>10.1f}{cost.cpu_percent:>13.2f}"
        rows.append(f"{name:24}{cost.processes:>10}{numbers}")
    return "\n".join(rows)


def together(costs: Costs) -> Cost:
    return Cost(
        processes=sum(cost.processes for cost in costs.values()),
        rss_mb=sum(cost.rss_mb for cost in costs.values()),
        pss_mb=sum(cost.pss_mb for cost in costs.values()),
        cpu_percent=sum(cost.cpu_percent for cost in costs.values()),
    )


def targets(costs: Costs, start_s: float) -> list[Target]:
    total = together(costs)
    return [
        Target("idle_memory_mb", total.rss_mb, MEMORY_BOUND_MB),
        Target("idle_cpu_percent", total.cpu_percent, CPU_BOUND_PERCENT),
        Target("second_start_s", start_s, SECOND_START_BOUND_S),
    ]


if __name__ == "__main__":
    main()
