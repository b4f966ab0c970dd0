"""A whole cluster in virtual time: the real reconciler and store, with simulated machines and agents."""

import asyncio
import random
import shutil
from contextlib import suppress
from types import SimpleNamespace

from minicluster.wire import CountRange, JobSpec, JobSubmit
from minicluster_hub.jobs.gang_state import LifecycleLimits
from minicluster_hub.jobs.orders import TaskEnded
from minicluster_hub.jobs.records import GangTarget
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.store import Store

from ..service.conftest import check_invariants
from ..service.machines import control_loop
from .agents import Agent, digest
from .faulty_store import FaultyStore, Killed, StoreUnavailable
from .machines import ChaosEngine, Machines
from .virtual_time import VirtualLoop

LIMITS = LifecycleLimits(keep_warm_s=5.0, start_timeout_s=120.0, pull_timeout_s=600.0)
STARTED_AT = 1_800_000_000.0


class House:
    def __init__(self, template, folder, seed=0, *, serves=True):
        shutil.copy(template, folder / "minicluster.sqlite")
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.random = random.Random(seed)
        self.store = Store.open(f"sqlite:///{folder}/minicluster.sqlite")
        self.machines = Machines(self.loop, lambda process: Agent(self, process))
        self.faulty = FaultyStore(self.store)
        self.service = None
        self.jobs = {}
        self.stopped = {}
        self.old_reports = []
        self.lag_s = 0.0
        self.may_die = False
        if serves:
            self.start_service()

    def clock(self):
        return STARTED_AT + self.loop.time()

    # --- the service ----------------------------------------------------------------------------

    def start_service(self):
        engine = ChaosEngine(self.machines)
        self.machines.engine = engine
        self.faulty.revive()
        reconciler = control_loop(
            self.faulty,
            engine,
            limits=LIMITS,
            clock=self.clock,
            monotonic=self.loop.time,
        )
        self.service = SimpleNamespace(
            reconciler=reconciler, engine=engine, acting=self.loop.create_task(reconciler.run())
        )

    def kill_service(self):
        """Kill the service: its pending engine calls may have taken effect or not."""
        service, self.service = self.service, None
        self.machines.engine = None
        service.acting.cancel()

        async def gone():
            await asyncio.gather(service.acting, return_exceptions=True)
            await service.reconciler.close()

        with suppress(Killed):
            self.loop.run_until_complete(gone())

    # --- requests of agents and users ----------------------------------------------------------

    def orders(self, task_id):
        """Answer like a long-polled request, from the service's cached state. Raises TaskEnded."""
        status_cache = self.service.reconciler.status_cache
        task = next((one for one in status_cache.stored.tasks if one.id == task_id), None)
        if task is None:
            raise TaskEnded(f"task {task_id} is over")
        return status_cache.orders(task)

    def send(self, token, report):
        """Send a report with a random delay, so that reports may be reordered."""
        self.old_reports.append((token, report))
        lag_s = self.random.random() * self.lag_s
        self.loop.call_later(lag_s, self.deliver, token, report)

    def deliver(self, token, report):
        if self.service is None or self.faulty.dead:
            return
        with suppress(TaskEnded, Killed, StoreUnavailable):
            task = self.store.task_by_token(digest(token))
            if task is None:
                return
            self.service.reconciler.status_cache.orders(task)
            self.service.reconciler.heartbeat(task.id)
            if self.faulty.report(task, report, self.clock()):
                self.service.reconciler.wake()

    def submit(self, *, least=1, most=1, owner="ada", **spec):
        request = JobSubmit(
            idempotency_key=f"key-{len(self.jobs):05}",
            spec=JobSpec(payload_sha256="a" * 64, nodes=CountRange(min=least, max=most), **spec),
        )
        job, made = self.store.submit(owner, request, self.clock())
        assert made
        self.jobs[job.id] = job
        self.wake()
        return job.id

    def stop(self, job_id):
        """Request a stop, as the handler does; a job that has ended stays as it is."""
        if self.service is None or self.faulty.dead or self.store.job(job_id).state.terminal:
            return
        with suppress(Killed, StoreUnavailable):
            self.service.reconciler.apply_event(job_id, JobEvent.STOP_ASKED)
        if self.store.job(job_id).state not in ("queued", "starting", "running"):
            self.stopped.setdefault(job_id, self.store.job(job_id).attempts)

    def wake(self):
        if self.service is not None:
            self.service.reconciler.wake()

    def agents_of(self, attempt):
        found = (one.agent for one in self.machines.processes.values() if one.agent)
        return [agent for agent in found if agent.run and agent.run.attempt == attempt]

    # --- time and invariants -------------------------------------------------------------------

    def pass_time(self, seconds, look_each_s=1.0):
        """Let time pass, and check the invariants repeatedly."""
        until = self.loop.time() + seconds
        while until - self.loop.time() > 1e-6:
            self.loop.run_until_complete(asyncio.sleep(min(look_each_s, until - self.loop.time())))
            self.check()

    def check(self):
        """Check what must hold at any moment."""
        if self.service is not None and (self.faulty.dead or (self.may_die and self.service.acting.done())):
            self.kill_service()
        if self.service is not None and self.service.acting.done():
            self.service.acting.result()
        stored = self.store.open_state()
        check_invariants(stored)
        self._check_slots()
        self._check_rows(stored)
        self._check_jobs(stored)

    def _check_slots(self):
        held = {}
        for process in self.machines.living():
            if process.doomed and not process.machine.reached:
                continue  # ended as soon as its machine is reached, before anything new runs there
            for slot in process.launch.slots:
                other = held.setdefault((process.launch.node, slot), process)
                assert other is process, f"{process} and {other} hold slot {slot} of {process.launch.node}"
        twice = [task_id for task_id, times in self.machines.ever.items() if times > 1]
        assert not twice, f"tasks {twice} were started more than once"

    def _check_rows(self, stored):
        known = {task.id for task in stored.tasks}
        for process in self.machines.living():
            if process.machine.reached:
                assert process.launch.task_id in known, f"{process} runs without a row"

    def _check_jobs(self, stored):
        open_jobs = {job.id for job in stored.jobs}
        ending = {task.id for gang in stored.gangs if gang.target is GangTarget.END
                  for task in stored.tasks if task.gang_id == gang.id}  # fmt: skip
        attempts = {}
        for process in self.machines.living():
            if not process.machine.reached or process.launch.task_id in ending:
                continue
            for rank in process.ranks.values():
                assert rank.job in open_jobs, f"job {rank.job} is over, and has ranks on {process.launch}"
                other = attempts.setdefault(rank.job, rank.attempt)
                assert other == rank.attempt, f"job {rank.job} runs twice: {other}, {rank.attempt}"
        for job_id, before in self.jobs.items():
            job = self.store.job(job_id)
            assert job is not None, f"job {job_id} is lost"
            assert not before.state.terminal or job == before, f"{job} was over, as {before}"
            assert job.attempts >= before.attempts
            self.jobs[job_id] = job
            if job_id in self.stopped:
                assert job.attempts == self.stopped[job_id], f"{job} was started again after its stop"

    def settle(self):
        """End all faults; check that then each job ends and nothing is left."""
        self.faulty.heal()
        self.machines.refusals = self.machines.failures = 0
        self.machines.slow_s = self.lag_s = 0.0
        for name in self.machines.nodes:
            self.machines.heal(name)
        if self.service is None:
            self.start_service()
        # Each job may have to wait for all others.
        until = self.loop.time() + 300.0 + 60.0 * len(self.store.open_state().jobs)
        while not self._is_over():
            assert self.loop.time() < until, f"it does not come to rest: {self.history()}"
            self.pass_time(5.0, look_each_s=5.0)
            if self.service is None:
                self.start_service()

    def _is_over(self):
        stored = self.store.open_state()
        left = [one for one in self.machines.processes.values() if one.alive]
        return not (stored.jobs or stored.leases or left or self.machines.lighthouses)

    def history(self):
        stored = self.store.open_state()
        lines = [str(stored.jobs), str(stored.gangs), str(stored.tasks), str(stored.leases)]
        lines += [str(one) for one in self.machines.processes.values() if one.alive]
        for job in stored.jobs:
            lines += [
                f"{event.at - STARTED_AT:.2f} {event.kind} {event.text}"
                for event in self.store.events(job.id)
            ]
        return "\n".join(lines)

    def close(self):
        if self.service is not None:
            self.kill_service()
        for work in asyncio.all_tasks(self.loop):
            work.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        asyncio.set_event_loop(None)
        self.store.close()
