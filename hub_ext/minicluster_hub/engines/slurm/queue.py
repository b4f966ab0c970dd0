"""The requests of waiting jobs as jobs of Slurm: one for each gang; it holds nodes and runs nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from minicluster_hub.engines.capabilities import (
    BatchQueue,
    Place,
    PlacedGang,
    QueueAnswer,
    QueueRequest,
    QueueWait,
)
from minicluster_hub.engines.slurm.commands import Commands, SlurmError, SlurmRefused
from minicluster_hub.engines.slurm.names import Names
from minicluster_hub.engines.slurm.parsing import Granted
from minicluster_hub.engines.slurm.reasons import STARTING, SUBMITTING, queue_wait, refused_wait
from minicluster_hub.engines.slurm.settings import SlurmSettings
from minicluster_hub.engines.slurm.view import Allocation, SlurmView

AGAIN_S = 60.0
"""After this time a request that Slurm refused is sent again: a limit may have been raised."""
_FAILED_AGAIN_S = 2.0


class SlurmQueue(BatchQueue):
    """settings: the lab's choices. user_of: the Linux user of an owner; raises SlurmRefused."""

    name = "Slurm"

    def __init__(
        self,
        commands: Commands,
        view: SlurmView,
        names: Names,
        settings: SlurmSettings,
        user_of: Callable[[str], str],
        on_change: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self._commands = commands
        self._view = view
        self._names = names
        self._settings = settings
        self._user_of = user_of
        self._on_change = on_change
        self._log = log
        self._works: dict[object, asyncio.Task[None]] = {}
        self._sent: dict[str, int] = {}
        """How many readings were over when a request was sent: it may not be listed yet."""
        self._refused: dict[QueueRequest, QueueWait] = {}
        self._granted: dict[int, tuple[Granted, ...]] = {}
        self._places: dict[int, tuple[Place, ...]] = {}
        self._gangs: dict[int, set[int]] = {}
        """The allocations of each gang that has them for sure."""

    @property
    def busy(self) -> bool:
        """Whether something is on its way to Slurm."""
        return bool(self._works or self._sent)

    @property
    def gpus(self) -> bool:
        """Whether slots are GPUs: then nodes without any have no slots, so that no job mixes devices."""
        return any(node.gpus for node in self._view.nodes.values())

    def request(self, waiting: Sequence[QueueRequest], placed: Sequence[PlacedGang]) -> QueueAnswer:
        self._forget_ended(placed)
        granted: dict[int, tuple[Place, ...]] = {}
        waits: dict[int, QueueWait] = {}
        wanted: set[str] = set()
        for request in waiting:
            try:
                name = self._names.allocation(request, self._user_of(request.owner))
            except SlurmRefused as refused:
                waits[request.job_id] = refused_wait(str(refused))
                continue
            wanted.add(name)
            answer = self._answer(name, request, placed)
            if isinstance(answer, QueueWait):
                waits[request.job_id] = answer
            else:
                granted[request.job_id] = answer
        self._refused = {one: wait for one, wait in self._refused.items() if one in waiting}
        self._give_back(wanted, placed)
        return QueueAnswer(granted, waits, self._ends_at(placed))

    def allocation_for(self, gang_id: int, job_id: int | None, node: str) -> Allocation | None:
        """Return the running allocation in which a gang's task on a node runs; None if it is gone."""
        mine = self._gangs.get(gang_id, set())
        running = [one for one in self._view.allocations.values() if one.job.running]
        theirs = (one for one in running if one.job.id in mine or one.name.job_id == job_id)
        fitting = (one for one in theirs if node in one.job.nodes)
        found = max(fitting, key=lambda one: one.job.id, default=None)
        if found is not None:
            self._gangs.setdefault(gang_id, set()).add(found.job.id)
        return found

    def held_nodes(self) -> set[str]:
        """Return the nodes of which this cluster has a part."""
        return {node for one in self._view.allocations.values() for node in one.job.nodes}

    async def close(self) -> None:
        for work in self._works.values():
            work.cancel()
        await asyncio.gather(*self._works.values(), return_exceptions=True)

    # --- answers ------------------------------------------------------------------------------

    def _answer(
        self, name: str, request: QueueRequest, placed: Sequence[PlacedGang]
    ) -> QueueWait | tuple[Place, ...]:
        found = self._view.allocation_named(name)
        if found is None:
            return self._submitted(name, request)
        self._sent.pop(name, None)
        if found.job.pending:
            return queue_wait(found.job)
        if not found.job.running:
            return SUBMITTING  # The former one of that name ends; then it is sent again.
        if found.job.id not in self._granted:
            self._begin(("granted", found.job.id), self._look_at(found.job.id))
            return STARTING
        return self._placed_on(found.job.id, request, placed) or STARTING

    def _submitted(self, name: str, request: QueueRequest) -> QueueWait:
        if request in self._refused:
            return self._refused[request]
        if self._sent.get(name, self._view.polls) + 2 < self._view.polls:
            del self._sent[name]  # It was sent, and is not there: somebody has cancelled it.
        if name not in self._sent:
            self._begin(("submit", name), self._submit(name, request))
        return SUBMITTING

    async def _submit(self, name: str, request: QueueRequest) -> None:
        try:
            words = self._settings.sbatch(name, request, gpus=self.gpus)
            number = await self._commands.submit(self._user_of(request.owner), words)
        except SlurmRefused as refused:
            self._log.warning("Slurm refused the request of job %s: %s", request.job_id, refused)
            self._refused[request] = refused_wait(str(refused))
            asyncio.get_running_loop().call_later(AGAIN_S, self._ask_again, request)
            self._on_change()
        else:
            self._log.info("job %s is job %s of Slurm", request.job_id, number)
            self._sent[name] = self._view.polls
            self._view.poll_soon()

    def _ask_again(self, request: QueueRequest) -> None:
        if self._refused.pop(request, None):
            self._on_change()

    async def _look_at(self, slurm_job: int) -> None:
        self._granted[slurm_job] = tuple(await self._commands.granted(slurm_job))
        self._on_change()

    def _placed_on(
        self, slurm_job: int, request: QueueRequest, placed: Sequence[PlacedGang]
    ) -> tuple[Place, ...]:
        """Return an allocation's slots: the first free ones, where Slurm does not number them; () while there
        are none."""
        if slurm_job not in self._places:
            taken = set(_taken(placed, self._places.values()))
            found = [Place(one.node, self._slots(one, request, taken)) for one in self._granted[slurm_job]]
            if not all(place.slots for place in found):
                return ()
            self._places[slurm_job] = tuple(found)
        return self._places[slurm_job]

    def _slots(self, got: Granted, request: QueueRequest, taken: set[tuple[str, int]]) -> tuple[int, ...]:
        if got.gpus:
            return got.gpus
        node = self._view.nodes.get(got.node)
        if node is None:
            return ()
        there = node.gpus if self.gpus else self._settings.cpu_slots
        count = request.slots_per_replica if request.one_per_node else self._count(got)
        free = [slot for slot in range(there) if (got.node, slot) not in taken]
        return tuple(free[:count])

    def _count(self, got: Granted) -> int:
        if self._settings.cpu_slots == 1:
            return 1
        return max(1, got.cpus // max(1, self._settings.cpus_per_slot))

    # --- what is not needed any more ------------------------------------------------------------

    def _forget_ended(self, placed: Sequence[PlacedGang]) -> None:
        there, gangs = self._view.allocations.keys(), {gang.gang_id for gang in placed}
        for known in (self._granted, self._places):
            for slurm_job in known.keys() - there:
                del known[slurm_job]
        for gang_id in self._gangs.keys() - gangs:
            del self._gangs[gang_id]

    def _give_back(self, wanted: set[str], placed: Sequence[PlacedGang]) -> None:
        """Cancel the allocations that belong to no request and no gang."""
        bound = self._bound(placed)
        needed = {self._needed(name) for name in wanted} | bound
        for one in self._view.allocations.values():
            if (one.job.pending or one.job.running) and one.job.id not in needed:
                self._begin(("cancel", one.job.id), self._cancel(one))
        for name in self._sent.keys() - wanted:
            if self._sent[name] + 2 < self._view.polls:
                del self._sent[name]

    def _ends_at(self, placed: Sequence[PlacedGang]) -> dict[int, float]:
        """Return, by gang, when the first of its allocations ends by its time limit."""
        found: dict[int, float] = {}
        for gang in placed:
            jobs = (self._view.allocations.get(slurm_job) for slurm_job in self._bound([gang], known=False))
            ends = [one.job.ends_at for one in jobs if one is not None and one.job.ends_at is not None]
            if ends:
                found[gang.gang_id] = min(ends)
        return found

    def _needed(self, name: str) -> int | None:
        """Return the job of a request; if it was submitted twice, only one of them is needed."""
        found = self._view.allocation_named(name)
        return found.job.id if found is not None else None

    def _bound(self, placed: Sequence[PlacedGang], *, known: bool = True) -> set[int]:
        """Return the gangs' allocations: by steps, by the names of their jobs, or (known) as remembered."""
        requests = {(gang.job_id, gang.attempt) for gang in placed}
        tasks = {task_id for gang in placed for task_id in gang.tasks}
        bound = {
            one.job.id
            for one in self._view.allocations.values()
            if (one.name.job_id, one.name.attempt) in requests
        }
        bound |= {one.step.job_id for task_id, one in self._view.tasks.items() if task_id in tasks}
        return bound.union(*self._gangs.values()) if known else bound

    async def _cancel(self, one: Allocation) -> None:
        self._log.info("job %s of Slurm is given back", one.job.id)
        await self._commands.cancel(one.job.user, str(one.job.id))
        await self._view.next_poll()

    # --- in the background ----------------------------------------------------------------------

    def _begin(self, key: object, work: Coroutine[Any, Any, None]) -> None:
        """Do something once at a time."""
        if key in self._works:
            work.close()
            return
        self._works[key] = task = asyncio.create_task(self._patiently(work))
        task.add_done_callback(lambda _: self._works.pop(key, None))

    async def _patiently(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something; after a failure, let the next tick try it again, but not at once."""
        try:
            await work
        except SlurmError as error:
            self._log.warning("Slurm: %s", error)
            await asyncio.sleep(_FAILED_AGAIN_S)
            asyncio.get_running_loop().call_soon(self._on_change)


def _taken(placed: Iterable[PlacedGang], others: Iterable[Iterable[Place]]) -> Iterable[tuple[str, int]]:
    """Yield the slots of gangs and of what has been granted."""
    for places in (*(gang.tasks.values() for gang in placed), *others):
        for place in places:
            yield from ((place.node, slot) for slot in place.slots)
