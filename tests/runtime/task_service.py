"""A small real service with only the agents' part of the API.

It replaces the job service, so that the runtime is tested against the messages alone, and tests can make the
service fail. tests/service and tests/hub test the real one with agents. Faults are subclasses.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, field
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler

from minicluster.wire import (
    ArtifactReport,
    BlobInfo,
    ErrorAnswer,
    ErrorDetail,
    RankReport,
    RankState,
    ReportAnswer,
    RunOrder,
    SmallFiles,
    StopMode,
    TaskOrders,
    TaskReport,
    parse_strict,
)
from minicluster.wire.sweeps.trials import (
    DrawAhead,
    DrawnParameter,
    DrawnParameters,
    LeaveTrial,
    SuggestedParameter,
    SuggestParameter,
)


@dataclass
class Task:
    """The service's state of one agent."""

    token: str
    orders: TaskOrders = field(default_factory=lambda: TaskOrders(version="0"))
    report: TaskReport = field(default_factory=TaskReport)
    reports: int = 0
    over: bool = False


@dataclass
class Attempt:
    """The service's state of one attempt."""

    id: int
    world_size: int
    tasks: list[Task]
    streams: dict[str, bytearray] = field(default_factory=dict)
    ranks: dict[int, RankReport] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)
    result: BlobInfo | None = None
    artifacts: dict[tuple[int, str], ArtifactReport] = field(default_factory=dict)

    @property
    def cleared(self) -> bool:
        return all(task.report.cleared >= self.id for task in self.tasks)

    @property
    def failed(self) -> bool:
        return any(rank.error for rank in self.ranks.values())

    @property
    def succeeded(self) -> bool:
        done = [rank for rank in self.ranks.values() if rank.state is RankState.EXITED and not rank.error]
        return len(done) == self.world_size

    def text(self, rank: int) -> str:
        return self.streams.get(f"rank-{rank}", bytearray()).decode()


class TaskService:
    """Serves reports, orders and blobs on its own port."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.attempts: dict[int, Attempt] = {}
        self.blobs: dict[str, bytes] = {}
        self.suggested: dict[str, float] = {}
        self.suggestions: list[SuggestParameter] = []
        self.ahead: tuple[DrawnParameter, ...] = ()
        self.left: list[LeaveTrial] = []
        self.changed = asyncio.Condition()
        self.port = 0
        self._server: HTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/services/minicluster/"

    async def open(self) -> None:
        """Listen on a free port; later, on the same one again."""
        base = "/services/minicluster/api/tasks/"
        routes: list[Any] = [
            (base + "report", ReportHandler, {"service": self}),
            (base + "orders", OrdersHandler, {"service": self}),
            (base + "files", SmallFilesHandler, {"service": self}),
            (base + "suggest", SuggestHandler, {"service": self}),
            (base + "draw-ahead", DrawAheadHandler, {"service": self}),
            (base + "leave", LeaveHandler, {"service": self}),
            (base + "(?:blobs|snapshots|files)/([0-9a-f]{64})", BlobHandler, {"service": self}),
        ]
        self._server = HTTPServer(Application(routes), max_buffer_size=1 << 28)
        sockets = bind_sockets(self.port, "127.0.0.1")
        self.port = sockets[0].getsockname()[1]
        self._server.add_sockets(sockets)

    async def close(self) -> None:
        if self._server:
            self._server.stop()
            await self._server.close_all_connections()
            self._server = None

    async def send_notices(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Any, limit_s: float = 60.0) -> None:
        """Wait until a condition on the reports holds."""
        async with asyncio.timeout(limit_s), self.changed:
            await self.changed.wait_for(condition)

    async def order(
        self, task: Task, run: RunOrder | None, stop: StopMode | None = None, *, leave: bool = False
    ) -> None:
        """Set a task's order; a request for a stack dump in the same attempt remains."""
        before = task.orders.run
        stack_dump_id = task.orders.look if run and before and run.attempt == before.attempt else 0
        task.orders = TaskOrders(
            version=str(int(task.orders.version) + 1), run=run, stop=stop, look=stack_dump_id, leave=leave
        )
        await self.send_notices()

    async def answer(self, task: Task, report: TaskReport) -> ReportAnswer:
        """Store a report. Faults override this."""
        task.report, task.reports = report, task.reports + 1
        sizes = self.keep(report)
        await self.send_notices()
        attempt = self.attempts.get(report.attempt or 0)
        if attempt and attempt.failed:
            for other in attempt.tasks:
                run = other.orders.run
                if run and run.attempt == attempt.id and other.orders.stop is None:
                    await self.order(other, other.orders.run, StopMode.ABORT)
        return ReportAnswer(sizes=sizes)

    def put_blob(self, sha256: str, data: bytes) -> None:
        self.blobs[sha256] = data

    def keep_blob(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        self.blobs[sha256] = data
        return sha256

    def keep(self, report: TaskReport) -> dict[str, int]:
        attempt = self.attempts.get(report.attempt or 0)
        if attempt is None:
            return {}
        for chunk in report.chunks:
            stream = attempt.streams.setdefault(chunk.stream, bytearray())
            if chunk.offset <= len(stream):
                stream += chunk.data[len(stream) - chunk.offset :]
        for rank in report.ranks:
            if rank.rank not in attempt.ranks or attempt.ranks[rank.rank].state is not RankState.EXITED:
                attempt.ranks[rank.rank] = rank
        attempt.notes |= set(report.notes)
        attempt.artifacts |= {(one.part, one.path): one for one in report.artifacts}
        attempt.result = attempt.result or report.result
        return {name: len(stream) for name, stream in attempt.streams.items()}


class TaskHandler(RequestHandler):
    """Finds the task by its token; errors have a message."""

    def initialize(self, service: TaskService) -> None:
        self.service = service

    def prepare(self) -> None:
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        task = self.service.tasks.get(token)
        if scheme != "task" or task is None or self.request.headers.get("Minicluster-Wire") != "1":
            raise HTTPError(401)
        if task.over:
            raise HTTPError(410)
        self.current_user = task

    def write_error(self, status_code: int, **_: Any) -> None:
        self.finish(ErrorAnswer(error=ErrorDetail(code="error", message=self._reason)).model_dump_json())


class ReportHandler(TaskHandler):
    async def post(self) -> None:
        report = parse_strict(TaskReport, self.request.body)
        if report.result is not None and report.result_data is not None:
            self.service.put_blob(report.result.sha256, report.result_data)
        answer = await self.service.answer(self.current_user, report)
        self.finish(answer.model_dump_json())


class OrdersHandler(TaskHandler):
    async def get(self) -> None:
        task, have = self.current_user, self.get_argument("have")
        with contextlib.suppress(TimeoutError):
            await self.service.until(lambda: task.over or task.orders.version != have, 25.0)
        if task.over:
            raise HTTPError(410)
        self.finish(task.orders.model_dump_json())


class SuggestHandler(TaskHandler):
    """Draws each parameter once: 1, 2, 3, and so on."""

    def post(self) -> None:
        asked, service = parse_strict(SuggestParameter, self.request.body), self.service
        service.suggestions.append(asked)
        if asked.name == "refused":
            raise HTTPError(422, reason="no such parameter")
        value = service.suggested.setdefault(asked.name, float(len(service.suggested)))
        self.finish(SuggestedParameter(value=value).model_dump_json())


class DrawAheadHandler(TaskHandler):
    def post(self) -> None:
        parse_strict(DrawAhead, self.request.body)
        self.finish(DrawnParameters(drawn=self.service.ahead).model_dump_json())


class LeaveHandler(TaskHandler):
    def post(self) -> None:
        self.service.left.append(parse_strict(LeaveTrial, self.request.body))
        self.set_status(204)


class SmallFilesHandler(TaskHandler):
    def post(self) -> None:
        for data in parse_strict(SmallFiles, self.request.body).contents:
            self.service.put_blob(hashlib.sha256(data).hexdigest(), data)
        self.set_status(204)


class BlobHandler(TaskHandler):
    def get(self, sha256: str) -> None:
        if sha256 not in self.service.blobs:
            raise HTTPError(404)
        self.finish(self.service.blobs[sha256])

    def put(self, sha256: str) -> None:
        data = self.request.body
        if hashlib.sha256(data).hexdigest() != sha256:
            raise HTTPError(422)
        self.service.put_blob(sha256, data)
        self.finish(BlobInfo(sha256=sha256, size_bytes=len(data)).model_dump_json())
