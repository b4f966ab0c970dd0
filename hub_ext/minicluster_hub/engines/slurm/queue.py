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
from minicluster_hub.engines.slurm.reasons import (
    CANCELLED,
    STARTING,
    SUBMITTING,
    queue_wait,
    refused_wait,
)
from minicluster_hub.engines.slurm.settings import SlurmSettings
from minicluster_hub.engines.slurm.view import Allocation, SlurmView

AGAIN_S = 60.0
"""After this time a request that Slurm refused, or somebody cancelled there, is sent again."""
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
        self._sent: set[str] = set()
        """Names of requests that Slurm has listed since they were sent."""
        self._refused: dict[QueueRequest, QueueWait] = {}
        self._granted: dict[int, tuple[Granted, ...]] = {}
        self._places: dict[int, tuple[Place, ...]] = {}
        self._gangs: dict[int, set[int]] = {}
        """The allocations of each gang that has them for sure."""

    @property
    def busy(self) -> bool:
        """Whether something is on its way to Slurm."""
        return bool(self._works)

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
        self._sent &= wanted
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
        if ("cancel", found.job.id) in self._works:
            return SUBMITTING
        if not found.job.ending:
            self._sent.add(name)
        if found.job.pending:
            return queue_wait(found.job)
        if not found.job.running:
            # The former one of that name may be ending; then it is sent again.
            return STARTING if found.job.has_nodes else SUBMITTING
        if found.job.id not in self._granted:
            self._begin(("granted", found.job.id), self._look_at(found.job.id))
            return STARTING
        return self._placed_on(found.job.id, request, placed) or STARTING

    def _submitted(self, name: str, request: QueueRequest) -> QueueWait:
        if request in self._refused:
            return self._refused[request]
        if name in self._sent:
            self._log.warning("somebody has cancelled the request of job %s in Slurm", request.job_id)
            self._sent.discard(name)
            self._refuse(request, CANCELLED)
            return CANCELLED
        self._begin(("submit", name), self._submit(name, request))
        return SUBMITTING

    async def _submit(self, name: str, request: QueueRequest) -> None:
        try:
            words = self._settings.sbatch(name, request, gpus=self.gpus)
            number = await self._commands.submit(self._user_of(request.owner), words)
        except SlurmRefused as refused:
            self._log.warning("Slurm refused the request of job %s: %s", request.job_id, refused)
            self._refuse(request, refused_wait(str(refused)))
            self._on_change()
        else:
            self._log.info("job %s is job %s of Slurm", request.job_id, number)
            await self._view.next_poll()
            self._sent.add(name)  # From now on it is listed, unless somebody has cancelled it.

    def _refuse(self, request: QueueRequest, wait: QueueWait) -> None:
        """Let a request wait for a while before it is sent again."""
        self._refused[request] = wait
        asyncio.get_running_loop().call_later(AGAIN_S, self._ask_again, request)

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
            left = request.max_replicas * request.slots_per_replica
            found: list[Place] = []
            for one in self._granted[slurm_job]:
                count = min(left, self._count(one, request))
                slots = self._slots(one, count, taken)
                if len(slots) < count:
                    return ()
                left -= count
                found += [Place(one.node, slots)] if slots else []
            self._places[slurm_job] = tuple(found)
        return self._places[slurm_job]

    def _slots(self, got: Granted, count: int, taken: set[tuple[str, int]]) -> tuple[int, ...]:
        """Return slots of a node, as many as asked for if there are."""
        if got.gpus:
            return got.gpus[:count]
        node = self._view.nodes.get(got.node)
        if node is None:
            return ()
        there = node.gpus if self.gpus else self._settings.cpu_slots
        free = [slot for slot in range(there) if (got.node, slot) not in taken]
        return tuple(free[:count])

    def _count(self, got: Granted, request: QueueRequest) -> int:
        """Return how many slots an allocation has on a node."""
        if request.one_per_node:
            return request.slots_per_replica
        if self.gpus:
            return got.gpu_count
        # Slurm rounds CPUs up to whole cores, so there may be more than were asked for.
        each = max(1, self._settings.cpus_per_slot)
        return 1 if self._settings.cpu_slots == 1 else max(1, got.cpus // each)

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
        needed = {self._needed(name) for name in wanted} | self._bound(placed)
        for one in self._view.allocations.values():
            if one.job.id not in needed and not one.job.ending:
                self._begin(("cancel", one.job.id), self._cancel(one))

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
        except Exception:
            self._log.exception("a request to Slurm failed")
        else:
            return
        await asyncio.sleep(_FAILED_AGAIN_S)
        asyncio.get_running_loop().call_soon(self._on_change)


def _taken(placed: Iterable[PlacedGang], others: Iterable[Iterable[Place]]) -> Iterable[tuple[str, int]]:
    """Yield the slots of gangs and of what has been granted."""
    for places in (*(gang.tasks.values() for gang in placed), *others):
        for place in places:
            yield from ((place.node, slot) for slot in place.slots)
