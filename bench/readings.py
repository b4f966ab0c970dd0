"""The cost of readings, in percent of a core: an idle node's agent, the ranks of a task, and the job service.

The agent is a real process that reports to a server here. Of the others, the CPU time of one round of work is
measured, and divided by the time between two rounds. Prints one line per target.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
from parts.targets import Target, close
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from minicluster.machine.gpus import find_gpus
from minicluster.machine.ranks import RankReader
from minicluster.machine.reader import EACH_S, MachineReader
from minicluster.wire import DataAgentOrders, DataAgentReport, GpuState, MachineReading, RankReading
from minicluster_hub.machines.machines import Machines
from minicluster_hub.machines.run_readings import RunReadings

AGENT_BOUND_PERCENT = 0.5
RANKS = 8
ROUNDS = 500
HELD_S = 25.0
STARTED_REPORTS = 4
"""After so many reports an agent has imported all that it needs."""
AGENT = "minicluster.runtime.node.data_agent"
GPU = GpuState(gpu="GPU-a", use_percent=50.0, memory_bytes=1 << 33, temperature_c=60.0, power_w=200.0)


class Orders(RequestHandler):
    """Holds a request for orders, as the job service does."""

    async def get(self) -> None:
        orders = DataAgentOrders(version="1")
        if self.get_query_argument("have") == orders.version:
            await asyncio.sleep(HELD_S)
        self.finish(orders.model_dump_json())


class Report(RequestHandler):
    def initialize(self, reports: asyncio.Queue[DataAgentReport]) -> None:
        self._reports = reports

    def post(self) -> None:
        self._reports.put_nowait(DataAgentReport.model_validate_json(self.request.body))
        self.set_status(204)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window-s", type=float, default=60.0, help="how long to look at the agent")
    options = parser.parse_args()
    agent_percent, readings = asyncio.run(agent_cost(options.window_s))
    bare_percent, _ = asyncio.run(agent_cost(options.window_s, MINICLUSTER_READINGS="0"))
    gpus = find_gpus()
    print(f"{psutil.cpu_count()} cores, {len(psutil.pids())} processes, {len(gpus.ids) if gpus else 0} GPUs")
    print(f"an idle agent: {agent_percent:.3f} %, without readings {bare_percent:.3f} %")
    reader = MachineReader(gpus=gpus)
    expected = options.window_s / EACH_S
    close(
        [
            Target("readings_agent_percent", agent_percent, AGENT_BOUND_PERCENT),
            Target("readings_arrived_share", readings / expected, 0.8, at_most=False),
            Target("readings_machine_percent", percent(reader.read), AGENT_BOUND_PERCENT),
            Target("readings_ranks_percent", ranks_cost(), AGENT_BOUND_PERCENT),
            Target("readings_service_node_percent", service_cost(), AGENT_BOUND_PERCENT),
            Target("readings_service_run_percent", run_cost(), AGENT_BOUND_PERCENT),
        ]
    )


def percent(work: Callable[[], object]) -> float:
    """Return the CPU time of some work in percent of a core, if it is done every EACH_S."""
    work()
    before = time.process_time()
    for _ in range(ROUNDS):
        work()
    return 100 * (time.process_time() - before) / ROUNDS / EACH_S


async def agent_cost(window_s: float, **env: str) -> tuple[float, int]:
    """Return an idle agent's CPU time in percent of a core, and how many readings it sent."""
    reports: asyncio.Queue[DataAgentReport] = asyncio.Queue()
    with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder:
        async with serving(reports) as url, agent(Path(folder), url, env) as process:
            for _ in range(STARTED_REPORTS):
                await reports.get()
            before, began = sum(process.cpu_times()[:2]), time.monotonic()
            await asyncio.sleep(window_s)
            used_s = sum(process.cpu_times()[:2]) - before
            came = [reports.get_nowait() for _ in range(reports.qsize())]
            readings = sum(len(report.readings) for report in came)
            return 100 * used_s / (time.monotonic() - began), readings


@asynccontextmanager
async def serving(reports: asyncio.Queue[DataAgentReport]):
    application = Application(
        [("/api/keepers/orders", Orders), ("/api/keepers/report", Report, {"reports": reports})]
    )
    server, sockets = HTTPServer(application), bind_sockets(0, "127.0.0.1")
    logging.getLogger("tornado.access").disabled = True
    server.add_sockets(sockets)
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    finally:
        server.stop()


@asynccontextmanager
async def agent(folder: Path, url: str, env: dict[str, str]):
    (folder / "token").write_text("a token")
    (folder / "cache").mkdir()
    variables = {
        "PATH": os.environ["PATH"],
        "MINICLUSTER_SERVICE_URL": url,
        "MINICLUSTER_TOKEN_FILE": str(folder / "token"),
        "MINICLUSTER_KEEPER_NODES": "node-1",
        "MINICLUSTER_DATA_CACHE": str(folder / "cache"),
        **env,
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", AGENT, env=variables)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        await process.wait()


def ranks_cost() -> float:
    """Return the cost of reading 8 ranks, all of which are this process."""
    reader, pids = RankReader(), dict.fromkeys(range(RANKS), os.getpid())
    return percent(lambda: reader.read(pids, {rank: rank for rank in pids}))


def service_cost() -> float:
    """Return the job service's cost of a node with 8 GPUs: its history on disk."""
    log = logging.getLogger("bench")
    reading = MachineReading(
        cpu_percent=50.0, memory_bytes=1 << 33, memory_total_bytes=1 << 36, gpus=(GPU,) * 8
    )
    with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder:
        machines = Machines(Path(folder), (), time.time, log)
        return percent(lambda: machines.receive(["node-1"], (reading,)))


def run_cost() -> float:
    """Return the job service's cost of a task with 8 ranks."""
    use = {"cpu_percent": 99.0, "memory_bytes": 1 << 33, "gpu_percent": 99.0}
    sent = [RankReading(rank=rank, **use) for rank in range(RANKS)]
    with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder:
        path = Path(folder) / "1.readings"
        readings = RunReadings(lambda _job_id: path, time.time, logging.getLogger("bench"))
        return percent(lambda: readings.receive(1, range(RANKS), sent))


if __name__ == "__main__":
    main()
