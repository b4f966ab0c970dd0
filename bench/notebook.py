"""A running cluster and a user's kernel on it, for benchmarks, accessed as a person does."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicluster_hub.launch import ports
from minicluster_hub.launch.demo import NOTEBOOK, SERVICE_PATH
from minicluster_hub.launch.hubprocess import HubProcess
from minicluster_hub.launch.kernel import KernelConnection, open_kernel
from minicluster_hub.launch.options import parse
from minicluster_hub.launch.serve import prepared
from minicluster_hub.launch.signals import Signals
from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.login.accounts_file import FIRST_USER, PasswordFile

CONFIG = """from minicluster_hub.configure import configure
configure(get_config(), engine={engine!r}, service_args={args!r})
"""

TIMED = """
import time
get_ipython().run_cell_magic("distribute", {line!r}, {source!r})
_ended = time.time()
"""


class CellFailed(SystemExit):
    """A benchmark's cell raised an error."""


@dataclass(frozen=True)
class Timing:
    """Seconds from sending a cell until `done` on all ranks, and until its names are returned.

    began: Unix time in seconds. timeline: lines that start with milliseconds since `began`.
    """

    began: float
    done_s: float
    back_s: float
    timeline: list[str]


@dataclass(frozen=True)
class Notebook:
    """A kernel of a notebook server, and the job service as the same user's browser sees it."""

    kernel: KernelConnection
    visitor: Visitor

    async def ask_service(self, path: str) -> Any:
        return await self.visitor.call("GET", f"{SERVICE_PATH}{path}", SERVICE_PATH)

    async def run(self, source: str) -> None:
        """Run a cell that must not fail."""
        outputs = await self.kernel.run(source)
        errors = [output.evalue for output in outputs if output.output_type == "error"]
        if errors:
            raise CellFailed(f"a cell failed: {errors}")

    async def time_cell(self, ranks: int, source: str) -> Timing:
        """Time a distributed cell that sets `done` to the time when all ranks had finished.

        The kernel itself takes the time of the names' return: its messages to this program are no part of it.
        """
        began = time.time()
        await self.run(TIMED.format(line=f"--nodes {ranks} --pull done", source=source))
        done, ended = float(await self.kernel.evaluate("done")), float(await self.kernel.evaluate("_ended"))
        timeline = [
            *await self.history(began),
            f"{(done - began) * 1e3:6.0f}  done on all ranks",
            f"{(ended - began) * 1e3:6.0f}  names are back",
        ]
        return Timing(began, done - began, ended - began, timeline)

    async def until_idle(self) -> None:
        """Wait until no job or warm gang holds a slot."""
        while True:
            nodes = (await self.ask_service("api/nodes"))["nodes"]
            if not any(slot["owner"] for node in nodes for slot in node["slots"]):
                return
            await asyncio.sleep(0.2)

    async def history(self, since: float) -> list[str]:
        """Return the newest job's history, each line with milliseconds since `since`."""
        job = (await self.ask_service("api/jobs?limit=1"))["jobs"][0]
        lines = (await self.ask_service(f"api/jobs/{job['id']}/history"))["lines"]
        return [
            f"{(line['at'] - since) * 1e3:6.0f}  {line['kind']} {line['text']}".rstrip() for line in lines
        ]


@dataclass(frozen=True)
class Cluster:
    hub: HubProcess
    password: str

    @asynccontextmanager
    async def notebook(self, name: str = NOTEBOOK) -> AsyncIterator[Notebook]:
        async with Visitor(self.hub.settings.url, FIRST_USER) as visitor:
            await visitor.log_in(self.password)
            await visitor.start_server()
            await visitor.http.get(SERVICE_PATH)
            async with open_kernel(visitor, name) as kernel:
                yield Notebook(kernel, visitor)


@contextmanager
def running_cluster(
    folder: Path,
    service_args: tuple[str, ...] = (),
    nodes: int = 3,
    *,
    prepares: bool = False,
    engine: str = "local",
) -> Iterator[Cluster]:
    """Run a cluster with these options of the job service. nodes: of the engine `local`.

    prepares: whether a gang is started when a notebook is opened.
    """
    config = folder / "config.py"
    args = service_args if prepares else ("--prepared-s=0", *service_args)
    config.write_text(CONFIG.format(engine=engine, args=args))
    os.environ["MINICLUSTER_TREE"] = str(Path(__file__).resolve().parents[1])
    options = parse(["--data", str(folder / "data"), "--nodes", str(nodes)])
    with prepared(options, ports.choose_public(options.host)) as prepared_hub:
        hub = HubProcess(prepared_hub.settings, config)
        try:
            with Signals() as signals:
                hub.start()
                hub.wait_ready(signals)
            password = PasswordFile(options.data_dir / "passwords.json").add_first()
            yield Cluster(hub, password or "")
        finally:
            hub.stop()
