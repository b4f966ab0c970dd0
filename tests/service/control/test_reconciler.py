"""The reconciler with a real store: whole lives of jobs."""

import asyncio
import hashlib
import time
from contextlib import suppress
from itertools import pairwise

from minicluster.wire import ErrorKind, JobState, RankReport, RankState, StopMode
from minicluster_hub.control.reconciler import LONGEST_REST_S
from minicluster_hub.engines.base import TaskRefused
from minicluster_hub.jobs.orders import TaskEnded
from minicluster_hub.jobs.records import TaskView
from minicluster_hub.jobs.states import JobEvent

from ... import messages
from ..machines import Machines, MemoryEngine, play, send_report, service, submit, until


class RefusingEngine(MemoryEngine):
    async def start(self, launch):
        raise TaskRefused(f"no image on {launch.node}")


async def test_a_job_runs_on_three_nodes_and_leaves_a_warm_gang(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        first = submit(sqlite)
        reconciler.wake()
        assert (await play(sqlite, reconciler, machines, first)).state is JobState.SUCCEEDED
        assert await until(reconciler, lambda: all(lease.warm for lease in sqlite.open_state().leases))
        second = submit(sqlite, key="key-00002")
        reconciler.wake()
        assert (await play(sqlite, reconciler, machines, second)).state is JobState.SUCCEEDED
    assert len(machines.launches) == 3, "the second cell used the warm gang"
    assert next(event.kind for event in sqlite.events(first)) == "submitted"


async def test_tokens_are_stored_as_hashes_before_a_task_starts(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        submit(sqlite)
        reconciler.wake()
        assert await until(reconciler, lambda: len(machines.launches) == 3)
        for launch in machines.launches:
            digest = hashlib.sha256(launch.token.encode()).hexdigest()
            assert sqlite.task_by_token(digest).id == launch.task_id
    assert len({launch.token for launch in machines.launches}) == 3


async def test_a_stranger_gets_the_slots_of_a_warm_gang_at_once(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        first = submit(sqlite)
        reconciler.wake()
        await play(sqlite, reconciler, machines, first)
        other = submit(sqlite, owner="bob", key="key-00002")
        reconciler.wake()
        assert (await play(sqlite, reconciler, machines, other)).state is JobState.SUCCEEDED
    assert len(machines.launches) == 6
    assert {launch.owner for launch in machines.launches[3:]} == {"bob"}


async def test_a_warm_gang_goes_cold_after_its_time(sqlite):
    machines = Machines()
    async with service(sqlite, machines, keep_warm_s=0.2) as reconciler:
        job = submit(sqlite)
        reconciler.wake()
        await play(sqlite, reconciler, machines, job)
        assert await until(reconciler, lambda: not sqlite.open_state().leases)
    assert machines.views == {}


async def test_a_failed_rank_fails_the_job_with_its_error_and_keeps_the_gang(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        job = submit(sqlite)
        reconciler.wake()
        record = await play(sqlite, reconciler, machines, job, succeed=False)
    assert record.state is JobState.FAILED
    assert record.error.message == "ValueError: no"
    assert all(lease.warm for lease in sqlite.open_state().leases)


async def test_a_task_that_the_engine_refuses_fails_the_job_and_frees_the_slots(sqlite):
    machines = Machines()
    async with service(sqlite, machines, kind=RefusingEngine) as reconciler:
        job = submit(sqlite)
        reconciler.wake()
        assert await until(reconciler, lambda: sqlite.job(job).state.terminal)
        assert await until(reconciler, lambda: not sqlite.open_state().leases)
    assert sqlite.job(job).error.message.startswith("no image on node-")


async def test_stop_interrupts_the_ranks_and_a_waiting_job_stops_at_once(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        running, waiting = submit(sqlite), submit(sqlite, key="key-00002")
        reconciler.wake()
        assert await until(reconciler, lambda: len(machines.launches) == 3)
        for task in sqlite.open_state().tasks:
            send_report(sqlite, reconciler, task, store_port=4000)
        assert await until(reconciler, lambda: reconciler.status_cache.job(sqlite.job(waiting)).reason)
        assert (
            messages.UNTIL_JOB_ENDS.format(job=running)
            in reconciler.status_cache.job(sqlite.job(waiting)).reason
        )
        reconciler.apply_event(waiting, JobEvent.STOP_ASKED)
        assert sqlite.job(waiting).state is JobState.STOPPED
        task = sqlite.open_state().tasks[0]
        assert await until(reconciler, lambda: reconciler.status_cache.orders(task).run is not None)
        reconciler.apply_event(running, JobEvent.STOP_ASKED)
        assert await until(
            reconciler, lambda: reconciler.status_cache.orders(task).stop is StopMode.INTERRUPT
        )
        assert (await play(sqlite, reconciler, machines, running)).state is JobState.STOPPED


async def test_agents_that_never_answer_a_stop_are_ended(sqlite):
    machines = Machines()
    async with service(sqlite, machines, stop_timeout_s=0.3) as reconciler:
        job = submit(sqlite)
        reconciler.wake()
        assert await until(reconciler, lambda: len(machines.launches) == 3)
        for task in sqlite.open_state().tasks:
            send_report(sqlite, reconciler, task, store_port=4000)
        reconciler.apply_event(job, JobEvent.STOP_ASKED)
        assert await until(reconciler, lambda: sqlite.job(job).state is JobState.STOPPED)
        assert await until(reconciler, lambda: not sqlite.open_state().leases)


async def lose_a_task(sqlite, machines, reconciler, job, tasks_so_far):
    """Wait until the job runs, check how many tasks were started so far, and kill the last one."""
    await run_all(sqlite, reconciler, job)
    assert len(machines.launches) == tasks_so_far
    dead = machines.launches[-1].task_id
    machines.views[dead] = TaskView(dead, alive=False)
    reconciler.wake()
    return dead


async def run_all(sqlite, reconciler, job):
    """Simulate a job's agents until all its ranks run."""
    while sqlite.job(job).state is not JobState.RUNNING:
        for task in sqlite.open_state().tasks:
            with suppress(TaskEnded):
                orders = reconciler.status_cache.orders(task)
                run = orders.run
                cleared = task.cleaned_up_attempt_id if run is None or orders.stop is None else run.attempt
                ranks = () if run is None else (RankReport(rank=run.first_rank, state=RankState.STARTED),)
                attempt = None if run is None else run.attempt
                send_report(
                    sqlite, reconciler, task, store_port=4000, attempt=attempt, ranks=ranks, cleared=cleared
                )
        await asyncio.sleep(0.002)


async def test_a_job_goes_on_with_the_tasks_that_are_left_and_a_new_one(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        job = submit(sqlite)
        reconciler.wake()
        dead = await lose_a_task(sqlite, machines, reconciler, job, 3)
        assert await until(reconciler, lambda: sqlite.job(job).state is not JobState.RUNNING)
        await run_all(sqlite, reconciler, job)
        assert len(machines.launches) == 4, "only the lost one was started again"
        assert sqlite.job(job).attempts == 2
        again = [rank.task_id for rank in sqlite.open_state().ranks]
        assert again == [machines.launches[index].task_id for index in (0, 1, 3)]
        assert dead not in machines.views, "nothing of it is left"


async def test_a_job_that_gets_no_further_is_given_up(sqlite):
    machines = Machines()
    async with service(sqlite, machines, max_lost_attempts=2) as reconciler:
        job = submit(sqlite)
        reconciler.wake()
        await lose_a_task(sqlite, machines, reconciler, job, 3)
        assert await until(reconciler, lambda: sqlite.job(job).state is not JobState.RUNNING)
        await lose_a_task(sqlite, machines, reconciler, job, 4)
        while not sqlite.job(job).state.terminal:
            for task in sqlite.open_state().tasks:
                send_report(sqlite, reconciler, task, store_port=4000, cleared=sqlite.job(job).attempt_id)
            await asyncio.sleep(0.002)
    record = sqlite.job(job)
    assert (record.state, record.error.kind) == (JobState.FAILED, ErrorKind.LOST)
    assert "2 attempts in a row" in record.error.message


async def test_a_long_poll_hears_of_new_orders(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        submit(sqlite)
        reconciler.wake()
        assert await until(reconciler, lambda: len(machines.launches) == 3)
        tasks = sqlite.open_state().tasks
        assert reconciler.status_cache.orders(tasks[0]).run is None
        async with reconciler.status_cache.orders_notifier.listen(tasks[0].id) as subscription:
            for task in tasks:
                send_report(sqlite, reconciler, task, store_port=4000)
            assert await subscription.wait(60)
        assert reconciler.status_cache.orders(tasks[0]).run is not None


async def test_who_wakes_it_all_the_time_leaves_others_half_of_the_loop(sqlite, monkeypatch):
    """A task may send fifty reports a second, each with new unreachable tasks."""
    ticks = []
    async with service(sqlite, Machines()) as reconciler:
        tick = reconciler._tick

        def slow_tick():
            began = time.monotonic()
            time.sleep(0.02)
            reconciler.wake()
            wait_s = tick()
            ticks.append((began, time.monotonic()))
            return wait_s

        monkeypatch.setattr(reconciler, "_tick", slow_tick)
        reconciler.wake()
        assert await until(reconciler, lambda: len(ticks) > 10)
    for (began, ended), (again, _) in pairwise(ticks):
        assert again - ended > min(LONGEST_REST_S, ended - began) - 0.001
