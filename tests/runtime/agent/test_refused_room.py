"""A job whose owner's storage is full: it runs to its end, and reports once what is not stored."""

from __future__ import annotations

from tornado.web import HTTPError

from minicluster.wire import ReportAnswer, TaskReport

from ... import messages
from ..conftest import Start
from ..task_service import Task, TaskService
from ..test_snapshots import counting

OVER = "1 MB more would be over your storage quota"


class OverQuota(TaskService):
    """Refuses all blobs, as the job service does for an owner whose storage quota is used up."""

    asked = 0

    def put_blob(self, sha256: str, data: bytes) -> None:
        self.asked += 1
        # The messages differ each time, as do the sizes in them.
        raise HTTPError(413, reason=f"{OVER}, {self.asked} files are on their way")


class RefusesWithinReports(TaskService):
    """Refuses a report that has a result's bytes, as a service with another limit for messages would."""

    refused = 0

    async def answer(self, task: Task, report: TaskReport) -> ReportAnswer:
        if report.result_data is not None:
            self.refused += 1
            raise HTTPError(413, reason="too large")
        return await super().answer(task, report)


async def test_a_result_that_is_refused_within_a_report_comes_by_itself(start: Start) -> None:
    service = RefusesWithinReports()
    cluster = await start(1, service)
    run = await cluster.run(counting(0), nodes=1)
    await service.until(lambda: run.attempt.cleared)
    assert service.refused == 1 and run.attempt.succeeded
    assert run.attempt.result is not None and run.attempt.result.sha256 in service.blobs
    assert not [note for note in run.attempt.notes if messages.RESULT_LEFT in note]


async def test_what_has_no_room_is_named_once_and_the_job_goes_on(start: Start) -> None:
    service = OverQuota()
    cluster = await start(1, service)
    run = await cluster.run(counting(0), nodes=1)
    await service.until(lambda: run.attempt.cleared)
    assert run.attempt.succeeded and run.attempt.result is None
    notes = sorted(note.partition(".")[0] for note in run.attempt.notes if OVER in note)
    assert notes == [
        messages.SNAPSHOT_LEFT,
        messages.RESULT_LEFT,
    ]
    assert service.asked <= 4
