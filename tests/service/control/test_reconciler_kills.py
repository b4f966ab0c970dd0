"""The reconciler, killed at every single write: it continues from the store."""

import pytest

from minicluster.wire import JobState

from ..machines import Machines, play, service, submit, until


class Killed(BaseException):
    """Stands for kill -9 at a call of the store: unsaved state is lost."""


class KilledAt:
    """A store that kills the service at its n-th write."""

    WRITES = ("apply", "admit", "bind", "set_task_token", "task_started", "end_gang", "task_ended")

    def __init__(self, store, at, *, before):
        self._store, self._left, self._before = store, at, before

    def __getattr__(self, name):
        method = getattr(self._store, name)
        return self._counted(method) if name in self.WRITES else method

    def _counted(self, method):
        def call(*args, **kwargs):
            self._left -= 1
            if self._left == 0 and self._before:
                raise Killed
            answer = method(*args, **kwargs)
            if self._left == 0:
                raise Killed
            return answer

        return call


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 9))
async def test_killed_at_any_write_loses_no_job_and_starts_nothing_twice(sqlite, at, before):
    machines = Machines()
    job = submit(sqlite)
    async with service(KilledAt(sqlite, at, before=before), machines) as doomed:
        doomed.wake()
        await play(sqlite, doomed, machines, job)
        killed = doomed.loop.done()
    async with service(sqlite, machines, keep_warm_s=0.1) as reconciler:
        record = await play(sqlite, reconciler, machines, job)
        assert record.state is JobState.SUCCEEDED
        assert await until(reconciler, lambda: not sqlite.open_state().leases)
    assert record.attempts == 1
    assert len({launch.task_id for launch in machines.launches}) == len(machines.launches) == 3
    assert killed or at > 5, "the life of this job has five writes at least: admit, three arm, apply"
