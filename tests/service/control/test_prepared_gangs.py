"""Gangs that start before there is a job: for their owner's first one, and for nobody's loss."""

import time

from minicluster.wire import JobState
from minicluster_hub.jobs.records import TaskState

from ..machines import Machines, play, send_report, service, submit, until


def prepare(reconciler, owner="ada"):
    places = reconciler.prepare(owner, None, time.time())
    reconciler.wake()
    return [node for node, _ in places]


async def observed(reconciler):
    assert await until(reconciler, lambda: reconciler.status_cache.observed.is_set())


async def test_the_first_job_runs_on_the_prepared_gang(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        await observed(reconciler)
        assert prepare(reconciler) == ["node-1", "node-2", "node-3"]
        assert await until(reconciler, lambda: len(machines.launches) == 3)
        assert prepare(reconciler) == [], "one is enough"
        job = submit(sqlite)
        reconciler.wake()
        assert (await play(sqlite, reconciler, machines, job)).state is JobState.SUCCEEDED
    assert len(machines.launches) == 3


async def test_it_is_ready_before_the_first_job(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        await observed(reconciler)
        prepare(reconciler)
        assert await until(reconciler, lambda: len(machines.launches) == 3)
        for task in sqlite.open_state().tasks:
            send_report(sqlite, reconciler, task)
        assert [task.state for task in sqlite.open_state().tasks] == [TaskState.READY] * 3


async def test_a_stranger_gets_its_slots_even_while_it_starts(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        await observed(reconciler)
        prepare(reconciler)
        assert await until(reconciler, lambda: len(machines.launches) == 3)
        other = submit(sqlite, owner="bob")
        reconciler.wake()
        assert (await play(sqlite, reconciler, machines, other)).state is JobState.SUCCEEDED
    assert {launch.owner for launch in machines.launches[3:]} == {"bob"}


async def test_its_owners_job_of_another_kind_gets_its_slots(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        await observed(reconciler)
        prepare(reconciler)
        job = submit(sqlite, image="other@sha256:" + "1" * 64)
        reconciler.wake()
        assert (await play(sqlite, reconciler, machines, job)).state is JobState.SUCCEEDED
    assert len(machines.launches) > 3


async def test_it_waits_for_its_time_and_no_longer(sqlite):
    machines = Machines()
    async with service(sqlite, machines, prepared_s=0.3, keep_warm_s=600.0) as reconciler:
        await observed(reconciler)
        assert prepare(reconciler)
        assert await until(reconciler, lambda: not sqlite.open_state().leases)
    assert machines.views == {}


async def test_none_is_prepared_while_a_job_waits_or_if_it_is_switched_off(sqlite):
    async with service(sqlite, Machines()) as reconciler:
        job = submit(sqlite, owner="bob", nodes=4)
        reconciler.wake()
        assert await until(reconciler, lambda: reconciler.status_cache.job(sqlite.job(job)).reason)
        assert prepare(reconciler) == []
    async with service(sqlite, Machines(), prepared_s=0.0) as reconciler:
        await observed(reconciler)
        assert prepare(reconciler) == []
