"""Simulated agents in virtual time; they behave as real ones do in tests/runtime."""

import asyncio
import hashlib
from types import SimpleNamespace

from minicluster.wire import ErrorKind, JobError, RankReport, RankState, StopMode, TaskReport
from minicluster_hub.jobs.orders import TaskEnded

TURN_S = 0.25
BOOT_S = 0.5
ENDS_WITHIN_S = {StopMode.INTERRUPT: 1.0, StopMode.ABORT: 0.5, StopMode.KILL: 0.0}


class Agent:
    """One task's agent with its ranks.

    A job's environment defines its cell: it LASTS so many seconds in step with all other ranks, FAILS at
    its end, or is STUBBORN when it is stopped.
    """

    def __init__(self, house, process):
        self.house = house
        self.process = process
        self.launch = process.launch
        self.ready = False
        self.run = None
        self.progress_s = 0.0
        self.ranks = {}
        self.cleared = 0
        self.ends_at = None
        self.said = None
        self.said_at = 0.0
        self.work = house.loop.create_task(self._live())

    @property
    def stuck(self):
        """Whether others wait for it without an error: its dead machine closed no connections."""
        dead_with_machine = not self.process.alive and self.process.lost_with_node
        return dead_with_machine or not self.process.machine.reached

    async def _live(self):
        await asyncio.sleep(BOOT_S)
        self.ready = True
        while self.process.alive:
            if not self.process.machine.frozen:
                self._advance()
                if self.process.machine.reached:
                    self._talk()
            await asyncio.sleep(TURN_S)

    # --- the ranks ----------------------------------------------------------------------------

    def _advance(self):
        if not self.process.ranks:
            return
        now = self.house.loop.time()
        if self.ends_at is not None and now >= self.ends_at:
            self._exit(137)
        elif self.ends_at is None and self._goes_on():
            self.progress_s += TURN_S
            if self.progress_s >= float(self.run.env["LASTS"]):
                self._finish()

    def _goes_on(self):
        if self.house.jobs[self.run.job_id].spec.fault_tolerant:
            return True
        others = self.house.agents_of(self.run.attempt)
        if any(not one.process.alive and not one.stuck for one in others):
            self._exit(1, "RuntimeError: Connection closed by peer")
            return False
        return sum(one.run.local_world_size for one in others) == self.run.world_size and not any(
            one.stuck for one in others
        )

    def _finish(self):
        fails = self.run.env.get("FAILS") and 0 in self.process.ranks
        self._exit(1 if fails else 0, "ValueError: no" if fails else "")

    def _exit(self, code, said=""):
        for rank in self.process.ranks:
            error = JobError(kind=ErrorKind.EXCEPTION, message=said, rank=rank, at=1.0) if said else None
            self.ranks[rank] = RankReport(rank=rank, state=RankState.EXITED, exit_code=code, error=error)
        self.process.ranks.clear()
        self.cleared = self.run.attempt

    # --- orders and reports -------------------------------------------------------------------

    def _talk(self):
        service = self.house.service
        if service is None or not service.reconciler.status_cache.observed.is_set():
            return
        try:
            self._obey(self.house.orders(self.launch.task_id))
        except TaskEnded:
            self.house.machines.end_process(self.process)
            return
        report = self._report()
        if report != self.said or self.house.loop.time() - self.said_at >= 1.0:
            self.said, self.said_at = report, self.house.loop.time()
            self.house.send(self.launch.token, report)

    def _obey(self, orders):
        run, newest = orders.run, self.run.attempt if self.run else 0
        if run is None or run.attempt < newest:
            return
        if run.attempt > newest:
            self._begin(run, stopped=orders.stop is not None)
        elif orders.stop is not None and self.process.ranks and self.ends_at is None:
            self._end(orders.stop)

    def _end(self, mode):
        if mode is StopMode.KILL or not self.run.env.get("STUBBORN"):
            self.ends_at = self.house.loop.time() + ENDS_WITHIN_S[mode]

    def _begin(self, run, *, stopped):
        assert not self.process.ranks, "an attempt was ordered while the one before still runs here"
        self.run, self.progress_s, self.ends_at, self.ranks = run, 0.0, None, {}
        if stopped:
            self.cleared = run.attempt
            return
        for rank in range(run.first_rank, run.first_rank + run.local_world_size):
            self.process.ranks[rank] = SimpleNamespace(attempt=run.attempt, job=run.job_id)
            self.ranks[rank] = RankReport(rank=rank, state=RankState.STARTED)

    def _report(self):
        return TaskReport(
            ready=self.ready,
            store_port=4000,
            attempt=self.run.attempt if self.run else None,
            ranks=tuple(self.ranks.values()),
            cleared=self.cleared,
        )


def digest(token):
    return hashlib.sha256(token.encode()).hexdigest()
