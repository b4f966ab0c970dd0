"""A node's data set agent: fetches each data set that the node's jobs read, once for all jobs.

It belongs to the platform, not to a job. It follows the service's orders and reports its progress, the idle
time of the node's GPUs, the node's addresses, and what the machine uses of CPU, memory, network and GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import psutil

from minicluster.machine.gpus import find_gpus
from minicluster.machine.reader import EACH_S, MachineReader
from minicluster.machine.unsent import UnsentReadings
from minicluster.runtime.agent.client import Backoff, ServiceRefused, ServiceUnavailable
from minicluster.runtime.node.cache import Cache
from minicluster.runtime.node.client import DataAgentClient
from minicluster.runtime.node.gpu_use import LOOK_S, GpuMeter, gpu_meter
from minicluster.runtime.node.work import DataWork
from minicluster.runtime.settings import (
    SettingsIncomplete,
    log_to_stderr,
    need,
    read_token,
    run_until_signalled,
    service_trust,
    service_urls,
)
from minicluster.wire import (
    READINGS_OF_REPORT,
    DataAgentOrders,
    DataAgentReport,
    DataSetState,
    DataSetStatus,
    MachineReading,
)

log = logging.getLogger("minicluster.data_agent")
_REPORT_S, _PAUSE_S = 4.0, 0.5
"""It reports at least every 4 s and at most twice a second."""

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


@dataclass(frozen=True)
class DataAgentSettings:
    """nodes: the nodes that it serves; several if this machine stands for several nodes.

    service_urls: see AgentSettings. idle_s: time without wanted data sets after which it exits; 0: never.
    reads_machine: whether it reports what the machine uses.
    """

    service_urls: tuple[str, ...]
    token: str
    nodes: tuple[str, ...]
    cache: Path
    limit_bytes: int = 0
    idle_s: float = 0.0
    former_index: str = ""
    reads_machine: bool = True

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> DataAgentSettings:
        """Raises SettingsIncomplete."""
        token, _, former_index = read_token(environ).partition("\n")
        return cls(
            service_urls=service_urls(environ),
            token=token,
            nodes=tuple(need(environ, "MINICLUSTER_KEEPER_NODES").split(",")),
            former_index=former_index,
            cache=Path(need(environ, "MINICLUSTER_DATA_CACHE")),
            limit_bytes=int(environ.get("MINICLUSTER_DATA_CACHE_BYTES") or 0),
            idle_s=float(environ.get("MINICLUSTER_KEEPER_IDLE_S") or 0),
            reads_machine=environ.get("MINICLUSTER_READINGS") != "0",
        )


class DataAgent:
    """One node's agent. `run` returns after `idle_s` without a wanted data set."""

    def __init__(
        self,
        settings: DataAgentSettings,
        client: DataAgentClient,
        gpus: GpuMeter | None = None,
        machine: MachineReader | None = None,
    ) -> None:
        self._settings = settings
        self._client = client
        self._cache = Cache(settings.cache, settings.token, settings.limit_bytes, settings.former_index)
        self._gpus = gpus
        self._readings: UnsentReadings[MachineReading] = UnsentReadings(READINGS_OF_REPORT)
        self._machine = machine
        self._works: dict[str, DataWork] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._checked: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._changed.set()

    async def run(self) -> None:
        await asyncio.to_thread(self._cache.open)
        works = self._report_changes(), self._watch_gpus(), self._read_machine()
        beside = [asyncio.create_task(work) for work in works]
        try:
            await self._follow()
        finally:
            for task in (*beside, *self._running.values()):
                task.cancel()
            await asyncio.gather(*beside, *self._running.values(), return_exceptions=True)
            await self._client.close()

    async def _follow(self) -> None:
        have, backoff, loop = "", Backoff(), asyncio.get_running_loop()
        busy_at = loop.time()
        while True:
            if self._settings.idle_s and loop.time() - busy_at > self._settings.idle_s:
                return log.info("nothing was wanted for %s s", self._settings.idle_s)
            try:
                orders = await self._client.wanted(self._settings.nodes, have)
            except (ServiceUnavailable, ServiceRefused) as error:
                log.warning("%s", error.message)
                await backoff.wait()
                continue
            backoff.reset()
            if orders.version != have:
                self._obey(orders)
                have = orders.version
            if self._works:
                busy_at = loop.time()

    def _obey(self, orders: DataAgentOrders) -> None:
        wanted = {order.folder: order for order in orders.wanted}
        for folder in self._works.keys() - wanted.keys():
            self._leave(folder)
        for folder, order in wanted.items():
            work = self._works.get(folder)
            done = work is not None and self._running[folder].done()
            if work is None or (done and work.standing.attempt < order.attempt):
                log.info("%s for attempt %s", order.name, order.attempt)
                work = DataWork(order, self._cache, self._client, self._works.keys, self._changed.set)
                self._works[folder] = work
                self._running[folder] = asyncio.create_task(work.run())
            work.order = order

    def _leave(self, folder: str) -> None:
        """Stop fetching a data set that no job wants; keep the fetched part while there is space."""
        self._running.pop(folder).cancel()
        work = self._works.pop(folder)
        if work.standing.standing is DataSetState.READY:
            self._checked[folder] = work.standing.attempt
            self._cache.touch(folder)

    async def _watch_gpus(self) -> None:
        while self._gpus is not None:
            await asyncio.to_thread(self._gpus.measure)
            await asyncio.sleep(LOOK_S)

    async def _read_machine(self) -> None:
        while self._machine is not None:
            if (reading := await asyncio.to_thread(self._machine.read)) is not None:
                self._readings.add(reading)
            await asyncio.sleep(EACH_S)

    async def _report_changes(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REPORT_S):
                    await self._changed.wait()
            self._changed.clear()
            report = await asyncio.to_thread(self._report, self._readings.take())
            try:
                await self._client.report_data(report)
            except ServiceUnavailable:
                self._changed.set()
            except ServiceRefused:
                self._readings.refused()
                self._changed.set()
            else:
                self._readings.accepted()
            await asyncio.sleep(_PAUSE_S)

    def _report(self, readings: tuple[MachineReading, ...]) -> DataAgentReport:
        sets = {
            entry.folder: DataSetStatus(
                folder=entry.folder,
                standing=DataSetState.READY,
                done_bytes=entry.size_bytes,
                attempt=self._checked.get(entry.folder, 0),
            )
            for entry in self._cache.entries()
            if entry.complete
        }
        sets |= {folder: work.standing for folder, work in list(self._works.items())}
        gpus = self._gpus.readings() if self._gpus else ()
        return DataAgentReport(
            nodes=self._settings.nodes,
            sets=tuple(sets.values()),
            gpus=gpus,
            addresses=own_addresses(),
            readings=readings,
        )


async def serve(settings: DataAgentSettings) -> None:
    """Run a data set agent until it is stopped or its idle time is over."""
    client = DataAgentClient(settings.service_urls, settings.token, service_trust())
    machine = MachineReader(gpus=find_gpus()) if settings.reads_machine else None
    data_agent = DataAgent(settings, client, gpu_meter(), machine)
    await run_until_signalled(data_agent.run())


def main() -> int:
    log_to_stderr()
    try:
        settings = DataAgentSettings.from_environ()
    except SettingsIncomplete as error:
        log.error("%s", error)
        return 2
    os.umask(0o022)
    asyncio.run(serve(settings))
    return 0


def own_addresses() -> tuple[str, ...]:
    """Return this machine's addresses on all networks, without loopback and link-local addresses.

    The firewall blocks users' containers from each of them.
    """
    addresses = (one for held in psutil.net_if_addrs().values() for one in held if one.family in _FAMILIES)
    found = {ip_address(one.address.partition("%")[0]) for one in addresses}
    return tuple(sorted(str(one) for one in found if not (one.is_loopback or one.is_link_local)))


if __name__ == "__main__":
    sys.exit(main())
