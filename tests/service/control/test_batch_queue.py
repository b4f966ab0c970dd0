"""An engine whose slots another queue owns: it is asked once for each gang, and its answer is kept to."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager

from minicluster.wire import JobState, RankReport, RankState
from minicluster_hub.engines.capabilities import Place
from minicluster_hub.jobs.records import TaskView
from minicluster_hub.scheduling.limits import Quotas
from minicluster_hub.usage.accounting import WEEK_S, UsageAccounting

from ..machines import (
    OTHERS_FIRST,
    Machines,
    MemoryEngine,
    MemoryQueue,
    play,
    send_report,
    service,
    submit,
    until,
)

NODES = ("node-1", "node-2", "node-3")


class QueueEngine(MemoryEngine):
    def __init__(self):
        super().__init__()
        self.batch_queue = MemoryQueue()

    def grant(self, request, *nodes):
        """Grant the first slot of these nodes."""
        self.batch_queue.granted[request] = tuple(Place(node, (0,)) for node in nodes)
        self.on_change()


@asynccontextmanager
async def queue_service(store, machines, **limits):
    async with service(store, machines, QueueEngine, **limits) as reconciler:
        engine = reconciler.status_cache.engine

        async def asked(job):
            """Wait for a job's request; return it."""
            queue = engine.batch_queue
            assert await until(reconciler, lambda: queue.asked and job in queue.asked[-1])
            return queue.asked[-1][job]

        reconciler.asked = asked
        yield reconciler, engine


async def test_a_job_asks_once_waits_with_that_queues_reason_and_runs_where_it_was_granted(sqlite):
    machines = Machines()
    async with queue_service(sqlite, machines) as (reconciler, engine):
        job = submit(sqlite, nodes=2, timeout_s=90.0)
        reconciler.wake()
        request = await reconciler.asked(job)
        assert (request.min_replicas, request.max_replicas, request.slots_per_replica) == (2, 2, 1)
        assert (request.owner, request.attempt, request.time_limit_s) == ("ada", 0, 90.0)
        assert await until(reconciler, lambda: reconciler.status_cache.waits())
        (wait,) = reconciler.status_cache.waits()
        assert (wait.reason, wait.expected_start_at) == (OTHERS_FIRST, 4e9)
        assert sqlite.job(job).state is JobState.QUEUED and not machines.launches
        engine.grant(request, "node-3", "node-1")
        assert (await play(sqlite, reconciler, machines, job)).state is JobState.SUCCEEDED
        assert {launch.node for launch in machines.launches} == {"node-1", "node-3"}
        assert await until(reconciler, lambda: engine.batch_queue.asked[-1] == {})
        requests = {asked[job] for asked in engine.batch_queue.asked if job in asked}
        assert requests == {request}


async def test_a_job_that_a_quota_holds_back_asks_for_nothing(sqlite):
    async with queue_service(sqlite, Machines()) as (reconciler, engine):
        quotas = Quotas.read({"ada": {"slots": 1}})
        reconciler.accounting.entitlements = UsageAccounting(sqlite, WEEK_S, {}, quotas).entitlements
        held = submit(sqlite, owner="ada", nodes=2)
        others = submit(sqlite, owner="bob", nodes=2, key="key-00002")
        reconciler.wake()
        await reconciler.asked(others)
        assert engine.batch_queue.asked[-1].keys() == {others}
        reasons = {wait.job_id: wait.reason for wait in reconciler.status_cache.waits()}
        assert "needs 2 slots" in reasons[held] or "quota" in reasons[held]


async def test_a_next_job_runs_on_the_warm_gang_and_asks_for_nothing(sqlite):
    machines = Machines()
    async with queue_service(sqlite, machines) as (reconciler, engine):
        first = submit(sqlite, nodes=2)
        reconciler.wake()
        engine.grant(await reconciler.asked(first), "node-1", "node-2")
        await play(sqlite, reconciler, machines, first)
        (gang,) = engine.batch_queue.placed
        assert {place.node for place in gang.tasks.values()} == {"node-1", "node-2"}
        second = submit(sqlite, nodes=2, key="key-00002")
        reconciler.wake()
        assert (await play(sqlite, reconciler, machines, second)).state is JobState.SUCCEEDED
        assert len(machines.launches) == 2
        assert all(second not in asked for asked in engine.batch_queue.asked)


async def test_a_job_that_is_longer_than_the_gang_lasts_asks_for_another_one(sqlite):
    machines = Machines()
    async with queue_service(sqlite, machines) as (reconciler, engine):
        first = submit(sqlite, nodes=1)
        reconciler.wake()
        engine.grant(await reconciler.asked(first), "node-1")
        await play(sqlite, reconciler, machines, first)
        (gang,) = engine.batch_queue.placed
        engine.batch_queue.ends_at = {gang.gang_id: time.time() + 60.0}
        engine.on_change()
        assert await until(reconciler, lambda: engine.batch_queue.told == engine.batch_queue.ends_at)
        long = submit(sqlite, nodes=1, key="key-00002", timeout_s=3600.0)
        reconciler.wake()
        assert (await reconciler.asked(long)).time_limit_s == 3600.0
        short = submit(sqlite, nodes=1, key="key-00003", timeout_s=10.0)
        reconciler.wake()
        assert (await play(sqlite, reconciler, machines, short)).state is JobState.SUCCEEDED
        assert len(machines.launches) == 1


async def test_a_warm_gang_is_given_back_when_a_job_waits_for_slots(sqlite):
    machines = Machines()
    async with queue_service(sqlite, machines) as (reconciler, engine):
        first = submit(sqlite, nodes=2)
        reconciler.wake()
        engine.grant(await reconciler.asked(first), "node-1", "node-2")
        await play(sqlite, reconciler, machines, first)
        other = submit(sqlite, owner="bob", nodes=3, key="key-00002")
        reconciler.wake()
        request = await reconciler.asked(other)
        assert len(engine.batch_queue.placed) == 1
        engine.batch_queue.for_slots = True
        engine.on_change()
        assert await until(reconciler, lambda: engine.batch_queue.placed == [])
        engine.grant(request, *NODES)
        assert (await play(sqlite, reconciler, machines, other)).state is JobState.SUCCEEDED


async def test_a_job_that_lost_a_node_asks_for_one_in_its_place(sqlite):
    machines = Machines()
    async with queue_service(sqlite, machines) as (reconciler, engine):
        job = submit(sqlite, nodes=2)
        reconciler.wake()
        engine.grant(await reconciler.asked(job), "node-1", "node-2")
        assert await until(reconciler, lambda: run_ranks(sqlite, reconciler) and runs(sqlite, job))
        lost = next(launch for launch in machines.launches if launch.node == "node-2")
        machines.views[lost.task_id] = TaskView(lost.task_id, alive=False, node_lost=True)
        engine.on_change()
        queue = engine.batch_queue
        assert await until(reconciler, lambda: clear(sqlite, reconciler) and job in queue.asked[-1])
        request = queue.asked[-1][job]
        assert (request.attempt, request.min_replicas, request.without) == (1, 1, ("node-1",))
        engine.grant(request, "node-3")
        assert (await play(sqlite, reconciler, machines, job)).state is JobState.SUCCEEDED
        assert [launch.node for launch in machines.launches].count("node-1") == 1
        assert {launch.node for launch in machines.launches} == set(NODES)


def runs(store, job):
    return store.job(job).state is JobState.RUNNING


def run_ranks(store, reconciler):
    """Report all tasks, and their ranks as running; return whether there are any."""
    tasks = store.open_state().tasks
    for task in tasks:
        run = reconciler.status_cache.orders(task).run
        running = {}
        if run:
            ranks = (RankReport(rank=run.first_rank, state=RankState.STARTED),)
            running = {"attempt": run.attempt, "ranks": ranks}
        send_report(store, reconciler, task, store_port=4000 + task.id, **running)
    return tasks


def clear(store, reconciler):
    """Report for each task that nothing of the job's attempt is left."""
    stored = store.open_state()
    for task in stored.tasks:
        send_report(store, reconciler, task, store_port=4000 + task.id, cleared=stored.jobs[0].attempt_id)
    return True
