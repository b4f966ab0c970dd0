"""A service without its API: the reconciler, an engine without processes, simulated agents."""

import asyncio
import logging
import time
from contextlib import asynccontextmanager

from minicluster.wire import (
    CountRange,
    ErrorKind,
    JobError,
    JobSpec,
    JobState,
    JobSubmit,
    RankReport,
    RankState,
    TaskReport,
)
from minicluster_hub.control.progress_rates import ProgressRates
from minicluster_hub.datasets.node_tracker import DataSetTracker
from minicluster_hub.engines.base import Engine
from minicluster_hub.engines.capabilities import BatchQueue, QueueAnswer, QueueWait
from minicluster_hub.jobs.gang_state import LifecycleLimits
from minicluster_hub.jobs.orders import TaskEnded
from minicluster_hub.jobs.records import NodeView, TaskView
from minicluster_hub.policy.active_policy import BUILT_IN, PolicyManager
from minicluster_hub.usage.accounting import WEEK_S, UsageAccounting
from minicluster_hub.wiring import make_reconciler

from ..patience import WITHIN_S


class Machines:
    """The state that outlives a killed service: running tasks, and all tasks ever started."""

    def __init__(self):
        self.views = {}
        self.launches = []


class MemoryEngine(Engine):
    """An engine without processes, since these tests are about the reconciler."""

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


OTHERS_FIRST = "waits in the other queue, where others have a higher priority (Priority)"


class MemoryQueue(BatchQueue):
    """Another queue without processes: a test grants places by hand. asked: all calls."""

    name = "Otherqueue"

    def __init__(self):
        self.asked = []
        self.placed = []
        self.granted = {}
        self.for_slots = False
        self.ends_at = self.told = {}

    def request(self, waiting, placed):
        self.asked.append({one.job_id: one for one in waiting})
        self.placed = list(placed)
        wait = QueueWait(OTHERS_FIRST, expected_start_at=4e9, for_slots=self.for_slots)
        granted = {one.job_id: self.granted[one] for one in waiting if one in self.granted}
        waits = {one.job_id: wait for one in waiting if one.job_id not in granted}
        self.told = self.ends_at
        return QueueAnswer(granted, waits, self.ends_at)


def control_loop(store, engine, **parts):
    """Return a reconciler; parts that are not given get defaults."""
    log, clock = logging.getLogger("minicluster-test"), parts.get("clock", time.time)
    defaults = {
        "service_urls": ("http://127.0.0.1:1/",),
        "policy_manager": PolicyManager(store, BUILT_IN, clock, log),
        "accounting": UsageAccounting(store, WEEK_S, {}),
        "limits": LifecycleLimits(),
        "log": log,
        "clock": clock,
        "data_set_tracker": DataSetTracker("secret", clock),
        "progress_rates": ProgressRates(),
    }
    return make_reconciler(store, engine, **{**defaults, **parts})


@asynccontextmanager
async def service(store, machines, kind=MemoryEngine, own=None, **limits):
    """Run a reconciler. own: the custom policies, none by default."""
    engine = kind()
    engine.machines = machines
    reconciler = control_loop(
        store,
        engine,
        policy_manager=PolicyManager(store, BUILT_IN, time.time, logging.getLogger("minicluster-test"), own),
        # Agents' silence must not count here, since a busy machine causes it; other tests cover it.
        limits=LifecycleLimits(**{"heartbeat_timeout_s": 600.0, "boot_timeout_s": 600.0, **limits}),
    )
    loop = asyncio.create_task(reconciler.run())
    reconciler.loop = loop
    try:
        yield reconciler
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await reconciler.close()


def submit(store, owner="ada", nodes=3, key="key-00001", **spec):
    request = JobSubmit(
        idempotency_key=key,
        spec=JobSpec(payload_sha256="a" * 64, nodes=CountRange(min=nodes, max=nodes), **spec),
    )
    return store.submit(owner, request, time.time())[0].id


async def until(reconciler, seen, timeout_s=WITHIN_S):
    """Wait until `seen()` is true or the service has ended; return whether it is true."""
    async with asyncio.timeout(timeout_s):
        while not seen() and not reconciler.loop.done():
            await asyncio.sleep(0.002)
    return bool(seen())


def send_report(store, reconciler, task, **report):
    store.report(task, TaskReport(address="127.0.0.1", ready=True, **report), time.time())
    reconciler.heartbeat(task.id)
    reconciler.wake()


async def play(store, reconciler, machines, job_id, *, succeed=True, owner=None):
    """Simulate the agents, or only an owner's: follow orders and report until the job has ended."""
    done = {}
    async with asyncio.timeout(WITHIN_S):
        while not reconciler.loop.done():
            record = store.job(job_id)
            if record.state.terminal:
                return record
            stored = store.open_state()
            gangs = {gang.id for gang in stored.gangs if owner in (None, gang.owner)}
            for task in stored.tasks:
                view = machines.views.get(task.id)
                if view is not None and view.alive and task.gang_id in gangs:
                    _act(store, reconciler, task, done, succeed)
            await asyncio.sleep(0.002)
    return store.job(job_id)


async def play_one(store, reconciler, machines):
    """Submit a job on one node and simulate it until it succeeds; return the policy manager's report."""
    job = submit(store, nodes=1)
    reconciler.wake()
    assert (await play(store, reconciler, machines, job)).state is JobState.SUCCEEDED
    return reconciler.policy_manager.report()


def _act(store, reconciler, task, done, succeed):
    try:
        orders = reconciler.status_cache.orders(task)
    except TaskEnded:
        return
    if orders.run is None or done.get(task.id) == orders.run.attempt:
        send_report(store, reconciler, task, store_port=4000 + task.id, cleared=task.cleaned_up_attempt_id)
        return
    done[task.id] = orders.run.attempt
    code = 0 if succeed else 1
    error = None if succeed else JobError(kind=ErrorKind.EXCEPTION, message="ValueError: no", rank=0, at=1.0)
    ranks = range(orders.run.first_rank, orders.run.first_rank + orders.run.local_world_size)
    exited = tuple(
        RankReport(rank=rank, state=RankState.EXITED, exit_code=code, error=error) for rank in ranks
    )
    send_report(
        store,
        reconciler,
        task,
        store_port=5000 + task.id,
        attempt=orders.run.attempt,
        ranks=exited,
        cleared=orders.run.attempt,
    )
