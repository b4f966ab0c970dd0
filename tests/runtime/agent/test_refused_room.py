"""A job whose owner's storage is full: it runs to its end, and reports once what is not stored."""

from __future__ import annotations

from tornado.web import HTTPError

from ... import messages
from ..conftest import Start
from ..task_service import TaskService
from ..test_snapshots import counting

OVER = "1 MB more would be over your storage quota"


class OverQuota(TaskService):
    """Refuses all blobs, as the job service does for an owner whose storage quota is used up."""

    asked = 0

    def put_blob(self, sha256: str, data: bytes) -> None:
        self.asked += 1
        # The messages differ each time, as do the sizes in them.
        raise HTTPError(413, reason=f"{OVER}, {self.asked} files are on their way")


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
