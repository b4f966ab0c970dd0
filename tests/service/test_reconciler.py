"""The loop that acts, with a real store: whole lives of jobs, and a kill at every single step."""

import asyncio
import hashlib
import time
from contextlib import asynccontextmanager

import pytest

from minicluster.wire import (
    ErrorKind,
    JobError,
    JobSpec,
    JobState,
    JobSubmit,
    NodeRange,
    RankReport,
    RankState,
    StopMode,
    TaskReport,
)
from minicluster_hub.engines.base import Engine, TaskRefused, TaskView
from minicluster_hub.models import NodeView
from minicluster_hub.orders import TaskOver
from minicluster_hub.reconciler import Reconciler
from minicluster_hub.scenes import Limits
from minicluster_hub.scheduling.placement.pack import Pack
from minicluster_hub.scheduling.policies.fifo import Fifo
from minicluster_hub.states import JobEvent
from minicluster_hub.store import Store


class Machines:
    """What goes on when the service is killed: the tasks that run, and each that was ever started."""

    def __init__(self):
        self.views = {}
        self.launches = []


class MemoryEngine(Engine):
    """An engine without processes, since here the loop is tested, not the engine."""

    machines: Machines

    async def open(self):
        pass

    async def start(self, launch):
        if launch.task_id not in self.machines.views:
            self.machines.launches.append(launch)
            self.machines.views[launch.task_id] = TaskView(launch.task_id, alive=True)

    async def end(self, task_id):
        self.machines.views[task_id] = TaskView(task_id, alive=False, clean=True)
        self.on_change()

    def tasks(self):
        return self.machines.views

    def forget(self, task_id):
        self.machines.views.pop(task_id, None)

    def nodes(self):
        return tuple(NodeView(f"node-{i}", True, "127.0.0.1", ("cpu",)) for i in (1, 2, 3))

    async def close(self):
        pass


class RefusingEngine(MemoryEngine):
    async def start(self, launch):
        raise TaskRefused(f"no image on {launch.node}")


class Killed(BaseException):
    """Stands for kill -9 at a call of the store: what was not stored is lost."""


class KilledAt:
    """A store whose n-th write is the last thing that the service does."""

    WRITES = ("apply", "admit", "bind", "arm_task", "task_started", "end_gang", "task_ended")

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


@asynccontextmanager
async def service(store, machines, kind=MemoryEngine, **limits):
    engine = kind()
    engine.machines = machines
    reconciler = Reconciler(
        store,
        engine,
        policy=Fifo(),
        placement=Pack(),
        service_url="http://127.0.0.1:1/",
        limits=Limits(**limits),
    )
    loop = asyncio.create_task(reconciler.run())
    reconciler.loop = loop
    try:
        yield reconciler
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await reconciler.close()


@pytest.fixture
def sqlite(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/service.sqlite")
    yield store
    store.close()


def submit(store, owner="ada", nodes=3, key="key-00001", **spec):
    request = JobSubmit(
        idempotency_key=key,
        spec=JobSpec(payload_sha256="a" * 64, nodes=NodeRange(min=nodes, max=nodes), **spec),
    )
    return store.submit(owner, request, time.time())[0].id


async def until(reconciler, seen, timeout_s=10):
    """Wait until `seen()` is true or the service is dead; return whether it is true."""
    async with asyncio.timeout(timeout_s):
        while not seen() and not reconciler.loop.done():
            await asyncio.sleep(0.002)
    return bool(seen())


def say(store, reconciler, task, **report):
    store.report(task, TaskReport(address="127.0.0.1", ready=True, **report), time.time())
    reconciler.heartbeat(task.id)
    reconciler.wake()


async def play(store, reconciler, machines, job_id, *, succeed=True):
    """Play the agents: do what the orders say, report, until the job is over or the service dies."""
    done = {}
    async with asyncio.timeout(20):
        while not reconciler.loop.done():
            record = store.job(job_id)
            if record.state.terminal:
                return record
            for task in store.world().tasks:
                view = machines.views.get(task.id)
                if view is not None and view.alive:
                    _act(store, reconciler, task, done, succeed)
            await asyncio.sleep(0.002)
    return store.job(job_id)


def _act(store, reconciler, task, done, succeed):
    try:
        orders = reconciler.board.orders(task)
    except TaskOver:
        return
    if orders.run is None or done.get(task.id) == orders.run.attempt:
        say(store, reconciler, task, store_port=4000 + task.id, cleared=task.cleared)
        return
    done[task.id] = orders.run.attempt
    code = 0 if succeed else 1
    error = None if succeed else JobError(kind=ErrorKind.EXCEPTION, message="ValueError: no", rank=0, at=1.0)
    ranks = range(orders.run.first_rank, orders.run.first_rank + orders.run.local_world_size)
    exited = tuple(
        RankReport(rank=rank, state=RankState.EXITED, exit_code=code, error=error) for rank in ranks
    )
    say(
        store,
        reconciler,
        task,
        store_port=5000 + task.id,
        attempt=orders.run.attempt,
        ranks=exited,
        cleared=orders.run.attempt,
    )


async def test_a_job_runs_on_three_nodes_and_leaves_a_warm_gang(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        first = submit(sqlite)
        reconciler.wake()
        assert (await play(sqlite, reconciler, machines, first)).state is JobState.SUCCEEDED
        assert await until(reconciler, lambda: all(lease.warm for lease in sqlite.world().leases))
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
        assert await until(reconciler, lambda: not sqlite.world().leases)
    assert machines.views == {}


async def test_a_failed_rank_fails_the_job_with_its_error_and_keeps_the_gang(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        job = submit(sqlite)
        reconciler.wake()
        record = await play(sqlite, reconciler, machines, job, succeed=False)
    assert record.state is JobState.FAILED
    assert record.error.message == "ValueError: no"
    assert all(lease.warm for lease in sqlite.world().leases)


async def test_a_task_that_the_engine_refuses_fails_the_job_and_frees_the_slots(sqlite):
    machines = Machines()
    async with service(sqlite, machines, kind=RefusingEngine) as reconciler:
        job = submit(sqlite)
        reconciler.wake()
        assert await until(reconciler, lambda: sqlite.job(job).state.terminal)
        assert await until(reconciler, lambda: not sqlite.world().leases)
    assert sqlite.job(job).error.message.startswith("no image on node-")


async def test_stop_interrupts_the_ranks_and_a_waiting_job_stops_at_once(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        running, waiting = submit(sqlite), submit(sqlite, key="key-00002")
        reconciler.wake()
        assert await until(reconciler, lambda: len(machines.launches) == 3)
        for task in sqlite.world().tasks:
            say(sqlite, reconciler, task, store_port=4000)
        assert await until(reconciler, lambda: reconciler.board.job(sqlite.job(waiting)).reason)
        assert f"until job {running} ends" in reconciler.board.job(sqlite.job(waiting)).reason
        reconciler.happened(waiting, JobEvent.STOP_ASKED)
        assert sqlite.job(waiting).state is JobState.STOPPED
        task = sqlite.world().tasks[0]
        assert await until(reconciler, lambda: reconciler.board.orders(task).run is not None)
        reconciler.happened(running, JobEvent.STOP_ASKED)
        assert await until(reconciler, lambda: reconciler.board.orders(task).stop is StopMode.INTERRUPT)
        assert (await play(sqlite, reconciler, machines, running)).state is JobState.STOPPED


async def test_agents_that_never_answer_a_stop_are_ended(sqlite):
    machines = Machines()
    async with service(sqlite, machines, stop_patience_s=0.3) as reconciler:
        job = submit(sqlite)
        reconciler.wake()
        assert await until(reconciler, lambda: len(machines.launches) == 3)
        for task in sqlite.world().tasks:
            say(sqlite, reconciler, task, store_port=4000)
        reconciler.happened(job, JobEvent.STOP_ASKED)
        assert await until(reconciler, lambda: sqlite.job(job).state is JobState.STOPPED)
        assert await until(reconciler, lambda: not sqlite.world().leases)


async def test_a_dead_task_starts_the_job_again_and_at_last_fails_it(sqlite):
    machines = Machines()
    async with service(sqlite, machines, max_attempts=2) as reconciler:
        job = submit(sqlite)
        reconciler.wake()
        for attempt in (1, 2):
            assert await until(reconciler, lambda n=attempt: len(machines.launches) == 3 * n)
            for task in sqlite.world().tasks:
                say(sqlite, reconciler, task, store_port=4000)
            for task in sqlite.world().tasks:
                run = None
                while run is None:
                    await asyncio.sleep(0.002)
                    run = reconciler.board.orders(task).run
                ranks = (RankReport(rank=run.first_rank, state=RankState.STARTED),)
                say(sqlite, reconciler, task, store_port=4000, attempt=run.attempt, ranks=ranks)
            assert await until(reconciler, lambda: sqlite.job(job).state is JobState.RUNNING)
            dead = machines.launches[-1].task_id
            machines.views[dead] = TaskView(dead, alive=False)
            reconciler.wake()
        assert await until(reconciler, lambda: sqlite.job(job).state is JobState.FAILED)
        assert await until(reconciler, lambda: not sqlite.world().leases)
    assert "attempt 2 of 2" in sqlite.job(job).error.message


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
        assert await until(reconciler, lambda: not sqlite.world().leases)
    assert record.attempts == 1
    assert len({launch.task_id for launch in machines.launches}) == len(machines.launches) == 3
    assert killed or at > 5, "the life of this job has five writes at least: admit, three arm, apply"


async def test_a_long_poll_hears_of_new_orders(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        submit(sqlite)
        reconciler.wake()
        assert await until(reconciler, lambda: len(machines.launches) == 3)
        tasks = sqlite.world().tasks
        assert reconciler.board.orders(tasks[0]).run is None
        heard = asyncio.create_task(reconciler.board.orders_changed(tasks[0].id, 10.0))
        await asyncio.sleep(0.01)
        for task in tasks:
            say(sqlite, reconciler, task, store_port=4000)
        async with asyncio.timeout(5):
            await heard
        assert reconciler.board.orders(tasks[0]).run is not None
