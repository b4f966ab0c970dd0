"""The agent of a task: follows the service's orders and reports the state of its ranks.

It never imports torch, so that it answers within milliseconds whatever the ranks do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from minicluster.capture import versions
from minicluster.runtime import processes, system
from minicluster.runtime.agent import task_limits
from minicluster.runtime.agent.attempt import Attempt, AttemptContext
from minicluster.runtime.agent.client import (
    AgentClient,
    Backoff,
    ServiceRefused,
    ServiceUnavailable,
    TaskEnded,
)
from minicluster.runtime.agent.files.artifacts import OutputUploads
from minicluster.runtime.agent.files.compile_cache import CompileCache
from minicluster.runtime.agent.files.snapshots import SnapshotTransfers
from minicluster.runtime.agent.part_downloads import PartDownloads
from minicluster.runtime.agent.zygote_client import ForkedChild, ZygoteClient, ZygotePool
from minicluster.runtime.node import gpus, mps
from minicluster.runtime.settings import (
    AgentSettings,
    SettingsIncomplete,
    log_to_stderr,
    run_until_signalled,
    service_trust,
)
from minicluster.wire import (
    DISK_FULL_SIGNAL,
    ErrorKind,
    JobError,
    ReportAnswer,
    RunOrder,
    StopMode,
    TaskOrders,
    TaskReport,
)

log = logging.getLogger("minicluster.agent")

_THREADS = 4
"""For what would block the loop: looking up a host's name, reading and hashing files."""


class Agent:
    """One task's agent. `run` returns when the service says that the task is over."""

    def __init__(self, settings: AgentSettings, client: AgentClient, zygote: ZygoteClient) -> None:
        self._settings = settings
        self._client = client
        self._zygotes = ZygotePool(zygote)
        self._reporter = Reporter(client, self._snapshot, self._take_answer, self._refused)
        self._store = StoreHost(settings.address)
        changed = self._reporter.state_changed
        self._snapshots = SnapshotTransfers(client, changed)
        self._outputs = OutputUploads(settings.scratch, settings.node, client, changed)
        self._compiled = CompileCache(settings.scratch, settings.node, client, changed)
        self._parts = PartDownloads(settings, client)
        self._attempt: Attempt | None = None
        self._running: asyncio.Task[None] | None = None
        self._cleared = 0
        self._trouble = ""
        self._disk_full: JobError | None = None
        self._versions = versions.here()
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        self._zygotes.listen(self._reporter.state_changed)
        try:
            async with self._tasks as tasks:
                tasks.create_task(self._reporter.run())
                tasks.create_task(self._follow_orders())
                tasks.create_task(self._open())
        except* TaskEnded as over:
            log.info("%s", over.exceptions[0])
        finally:
            await self._end_all()

    async def _open(self) -> None:
        self._trouble = (
            task_limits.disk_trouble(self._settings.scratch) or await gpus.trouble() or await mps.trouble()
        )
        if self._trouble:
            self._reporter.state_changed()
            return
        await self._zygotes.newest.usable()
        if not self._zygotes.broken:
            self._store.renew(self._zygotes.newest)

    def _end_store(self, used: bool) -> None:
        """Make a fresh store for the next attempt if the present one was used or ends with its zygote."""
        if used or self._zygotes.newest not in self._store.zygotes:
            self._store.renew(self._zygotes.newest)

    async def _follow_orders(self) -> None:
        have, backoff = "", Backoff()
        while True:
            try:
                orders = await self._client.orders(have)
            except (ServiceUnavailable, ServiceRefused) as error:
                log.warning("%s", error.message)
                await backoff.wait()
                continue
            backoff.reset()
            if orders.version != have:
                await self._obey(orders)
                have = orders.version

    async def _obey(self, orders: TaskOrders) -> None:
        self._parts.prefetch(orders.coming)
        wanted = orders.run
        if self._attempt and (wanted is None or wanted.attempt != self._attempt.id):
            await self._drop(self._attempt)
        if wanted and wanted.attempt > self._cleared and self._attempt is None:
            self._begin(wanted)
        elif wanted and self._attempt:
            self._attempt.renew(wanted)
            self._snapshots.renew(wanted)
        if self._attempt:
            self._attempt.watchdog.request_dump(orders.look)
            if orders.leave:
                self._attempt.let_leave()
            self._attempt.cells.obey(orders.cells)
            if orders.profile:
                self._attempt.profile(orders.profile)
        if orders.stop and self._attempt:
            self._attempt.stop(orders.stop)

    def _begin(self, order: RunOrder) -> None:
        log.info("attempt %s of job %s: %s ranks here", order.attempt, order.job_id, order.local_world_size)
        if self._zygotes.renew():
            versions.here.cache_clear()
            self._versions = versions.here()
        context = AttemptContext(
            settings=self._settings,
            client=self._client,
            zygote=self._zygotes.newest,
            changed=self._reporter.state_changed,
            output_came=self._reporter.output_came,
            end_store=self._end_store,
            surviving=self._surviving,
            snapshots=self._snapshots,
            outputs=self._outputs,
            compiled=self._compiled,
            parts=self._parts,
        )
        self._snapshots.begin(order)
        self._outputs.begin(order)
        self._compiled.begin()
        self._attempt = Attempt(order, context)
        self._running = self._tasks.create_task(self._attempt.run())

    async def _drop(self, attempt: Attempt) -> None:
        """End an attempt that the service does not want any more; what it had not reported is dropped."""
        attempt.stop(StopMode.ABORT)
        await attempt.gone.wait()
        if self._running:
            self._running.cancel()
        self._cleared = max(self._cleared, attempt.id)
        self._attempt = None
        attempt.forget()
        self._store.end_used()
        self._zygotes.close_unused(self._store.zygotes)
        self._reporter.state_changed()

    def _snapshot(self) -> TaskReport:
        attempt = self._attempt
        common = TaskReport(
            ready=self._store.port is not None and not self._zygotes.broken,
            address=self._settings.address,
            store_port=self._store.port,
            cleared=self._cleared,
            versions=self._versions,
            failure=self._failure(),
        )
        if attempt is None:
            return common
        return common.model_copy(
            update={
                "attempt": attempt.id,
                "ranks": attempt.rank_reports(),
                "chunks": attempt.chunks(),
                "result": attempt.result.info,
                "result_data": attempt.result.data,
                "notes": attempt.notes(),
                "ending": attempt.ending(),
                **attempt.watchdog.report(),
                "snapshots": self._snapshots.reports(),
                "artifacts": self._outputs.reports(),
                "unreached": attempt.connectivity.unreached,
                "readings": attempt.use.unsent.take(),
                "replica": attempt.replica,
                # In a report of its own, this would cost another round trip.
                "cleared": max(self._cleared, attempt.id) if attempt.is_over else self._cleared,
            }
        )

    def _take_answer(self, report: TaskReport, answer: ReportAnswer) -> None:
        attempt = self._attempt
        if attempt is None or report.attempt != attempt.id:
            return
        attempt.acknowledge(answer.sizes)
        attempt.use.unsent.accepted()
        if report.result_data is not None:
            attempt.result.taken()
        attempt.watchdog.acknowledge(report.look)
        if attempt.unsent:
            self._reporter.output_came()
        outputs_known = self._outputs.acknowledge(report, answer.missing)
        everything = attempt.has_all(report) and self._snapshots.has_all(report) and outputs_known
        if everything and self._cleared < attempt.id:
            self._cleared = attempt.id
            if report.cleared < attempt.id:
                self._reporter.state_changed()

    def _refused(self) -> None:
        if self._attempt:
            self._attempt.use.unsent.refused()
            self._attempt.refused()

    def disk_is_full(self) -> None:
        """End the ranks with an error: they filled the node's disk."""
        self._disk_full = task_limits.disk_error(self._settings.node, self._settings.scratch)
        if self._attempt:
            self._attempt.fail(self._disk_full)
        self._reporter.state_changed()

    def _failure(self) -> JobError | None:
        if self._disk_full:
            return self._disk_full
        if self._trouble:
            message = f"Ranks cannot start on {self._settings.node}: {self._trouble}."
            hint = "An admin's `doctor` tells what the node lacks."
            return JobError(kind=ErrorKind.START, message=message, hint=hint, at=time.time())
        if not self._zygotes.broken:
            return None
        kind = ErrorKind.LOST if self._zygotes.newest.ready.is_set() else ErrorKind.START
        message = f"Ranks cannot start on {self._settings.node}: {self._zygotes.broken}."
        return JobError(kind=kind, message=message, node=self._settings.node, at=time.time())

    async def _surviving(self) -> set[int]:
        return self._zygotes.pids | await self._store.pids()

    async def _end_all(self) -> None:
        self._zygotes.close()
        self._snapshots.close()
        self._outputs.close()
        self._compiled.close()
        self._parts.close()
        await processes.clear_below(os.getpid())
        await self._client.close()


async def serve(settings: AgentSettings, zygote: ZygoteClient) -> None:
    """Run an agent until its task is over or it is signalled."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_started_threads(_THREADS))
    agent = Agent(settings, AgentClient(settings.service_urls, settings.token, trust=service_trust()), zygote)
    loop.add_signal_handler(DISK_FULL_SIGNAL, agent.disk_is_full)
    await run_until_signalled(agent.run())


def _started_threads(count: int) -> ThreadPoolExecutor:
    """Start an executor's threads now: when ranks have taken all processes of the container, none can start.

    Without a free thread, the name of the service could not be looked up after a connection broke.
    """
    executor, all_started = ThreadPoolExecutor(count), threading.Barrier(count)
    for _ in range(count):
        executor.submit(all_started.wait)
    return executor


def main() -> int:
    log_to_stderr()
    task_limits.offer_to_oom_killer()
    system.adopt_orphans()
    try:
        settings = AgentSettings.from_environ()
    except SettingsIncomplete as error:
        log.error("%s", error)
        return 2
    asyncio.run(serve(settings, ZygoteClient.start()))
    return 0


# An attempt's TCPStore. One that was used stays until the whole attempt is over: ranks elsewhere may ask it.


class StoreHost:
    """Keeps one unused TCPStore listening, so that an attempt can begin at once."""

    def __init__(self, address: str) -> None:
        self.port: int | None = None
        self._address = address
        self._made = 0
        self._child: tuple[ZygoteClient, ForkedChild] | None = None
        self._used: tuple[ZygoteClient, ForkedChild] | None = None

    @property
    def zygotes(self) -> set[ZygoteClient]:
        """The zygotes from which the stores were forked."""
        return {made[0] for made in (self._child, self._used) if made is not None}

    async def pids(self) -> set[int]:
        """Return its processes, once those that are being made are there."""
        children = [made[1] for made in (self._child, self._used) if made is not None]
        for child in children:
            await child.made.wait()
        return {child.pid for child in children if child.pid}

    def renew(self, zygote: ZygoteClient) -> None:
        """Replace the store that was used. Early connections wait in the new socket's queue."""
        self.end_used()
        self._used = self._child
        with socket.create_server((self._address, 0), backlog=1024) as listener:
            self.port = listener.getsockname()[1]
            self._made += 1
            order = f"store-{self._made}", {"kind": "store"}
            self._child = zygote, zygote.fork(*order, [listener.fileno()])

    def end_used(self) -> None:
        """End the store of an attempt that is over."""
        if self._used is not None:
            zygote, child = self._used
            zygote.kill(child)
        self._used = None


# When to report: at once when a state changes, soon when output flows, each second anyway.


HEARTBEAT_S = 1.0
SPACING_S = 0.05
_SENT_ONCE = {"chunks": (), "readings": (), "artifacts": (), "result_data": None}
"""What a report has no longer once it was taken."""


class Reporter:
    """Sends what `snapshot` returns, over and over, and hands the answers to `take`.

    refused: called when the service refuses a report.
    """

    def __init__(
        self,
        client: AgentClient,
        snapshot: Callable[[], TaskReport],
        take: Callable[[TaskReport, ReportAnswer], None],
        refused: Callable[[], None],
    ) -> None:
        self._client = client
        self._snapshot = snapshot
        self._take = take
        self._refused = refused
        self._due = asyncio.Event()
        self._urgent = asyncio.Event()
        self._sent_at = 0.0
        self._answered: tuple[TaskReport, ...] = ()

    def state_changed(self) -> None:
        """Have a report sent at once."""
        self._urgent.set()
        self._due.set()

    def output_came(self) -> None:
        """Have a report sent soon. Cheap: each read of a pipe calls it."""
        self._due.set()

    async def run(self) -> None:
        """Report until cancelled. Raises TaskEnded."""
        backoff = Backoff()
        while True:
            await self._wait()
            report = self._snapshot()
            now = asyncio.get_running_loop().time()
            if report in self._answered and now < self._sent_at + HEARTBEAT_S:
                continue  # There is nothing new to say. The next report shall not have to wait for this one.
            self._answered, self._sent_at = (), now
            try:
                answer = await self._client.report(report)
            except (ServiceUnavailable, ServiceRefused) as error:
                log.warning("%s", error.message)
                if isinstance(error, ServiceRefused):
                    self._refused()
                await backoff.wait()
                self._due.set()
                continue
            backoff.reset()
            self._answered = report, report.model_copy(update=_SENT_ONCE)
            self._take(report, answer)

    async def _wait(self) -> None:
        await _set_before(self._due, self._sent_at + HEARTBEAT_S)
        await _set_before(self._urgent, self._sent_at + SPACING_S)
        self._due.clear()
        self._urgent.clear()


async def _set_before(event: asyncio.Event, deadline: float) -> None:
    """Wait for an event, but not beyond a time of the loop's clock."""
    # Not wait_for(): before Python 3.12 it can swallow a cancellation.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await event.wait()
