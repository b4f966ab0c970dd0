"""The next attempt on the same agents may come as soon as the job service knows that one has ended."""

from __future__ import annotations

from minicluster.wire import RankState, ReportAnswer, TaskReport

from ..conftest import Start
from ..task_service import Task, TaskService


class Ends(TaskService):
    """ports: of the store, by attempt, in the first report that says that all ranks have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ports: dict[int, int | None] = {}

    async def answer(self, task: Task, report: TaskReport) -> ReportAnswer:
        if report.attempt and report.ranks and all(one.state is RankState.EXITED for one in report.ranks):
            self.ports.setdefault(report.attempt, report.store_port)
        return await super().answer(task, report)


async def test_the_first_report_of_the_end_names_the_store_of_the_next_attempt(start: Start) -> None:
    """At the store of the attempt before it, which ends, its ranks would wait in vain."""
    service = Ends()
    cluster = await start(1, service)
    for number in (1, 2):
        used = cluster.tasks[0].report.store_port
        run = await cluster.run(f"number = {number}", nodes=1)
        assert await run.result() == {"number": number}
        assert service.ports[run.attempt.id] not in (None, used)
