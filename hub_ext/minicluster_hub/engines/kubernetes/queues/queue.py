"""The requests of waiting jobs as objects of another queue: one for each gang, as long as it is there."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from minicluster_hub.engines.capabilities import (
    BatchQueue,
    Place,
    PlacedGang,
    QueueAnswer,
    QueueRequest,
    QueueWait,
)
from minicluster_hub.engines.kubernetes.api_client.client import (
    ApiError,
    ApiMissing,
    ApiRefused,
    KubernetesApi,
)
from minicluster_hub.engines.kubernetes.api_client.watching import Watched
from minicluster_hub.engines.kubernetes.names import GANG_LABEL, QUEUE, SPEC_MARK, Names
from minicluster_hub.engines.kubernetes.queues.dialects import Dialect, GangRequest
from minicluster_hub.engines.kubernetes.queues.places import choose, taken_slots

_AGAIN_S = 2.0
_REFUSED_AGAIN_S = 60.0


class KubernetesQueue(BatchQueue):
    """slots: how many slots each node has that takes jobs now, and whether these are GPUs."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        names: Names,
        dialect: Dialect,
        slots: Callable[[], tuple[dict[str, int], bool]],
        on_change: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self.name = dialect.name
        self._api = api
        self._path = dialect.path.format(namespace=namespace)
        self._names = names
        self._dialect = dialect
        self._slots = slots
        self._on_change = on_change
        self._log = log
        self._view = Watched(
            api, self._path, names.selector(QUEUE), dialect.read, lambda _name, _changed: on_change(), log
        )
        self._works: dict[str, asyncio.Task[None]] = {}
        self._places: dict[str, tuple[Place, ...]] = {}
        """By the objects' names, what was granted and is not given back."""
        self._refused: dict[str, str] = {}
        """By the objects' names, why they were not taken."""
        self._gangs: dict[int, set[str]] = {}
        """The objects of each gang."""

    async def open(self) -> None:
        """Find what an earlier job service asked for. Raises ApiError if the cluster has no such queue."""
        try:
            await self._api.get(f"/apis/{self._dialect.group}")
        except ApiMissing as error:
            raise ApiRefused(
                f"{self.name} is not installed in this cluster ({self._dialect.group})"
            ) from error
        await self._view.open()

    async def close(self) -> None:
        for work in self._works.values():
            work.cancel()
        await asyncio.gather(*self._works.values(), return_exceptions=True)
        await self._view.close()

    def request(self, waiting: Sequence[QueueRequest], placed: Sequence[PlacedGang]) -> QueueAnswer:
        wanted = {self._name(request.job_id, request.attempt): request for request in waiting}
        self._bind(placed)
        self._give_back({*wanted} | self._held(placed))
        granted: dict[int, tuple[Place, ...]] = {}
        waits: dict[int, QueueWait] = {}
        for name, request in wanted.items():
            answer = self._answer(name, request, placed)
            if isinstance(answer, QueueWait):
                waits[request.job_id] = answer
            else:
                granted[request.job_id] = answer
        return QueueAnswer(granted, waits)

    def taken_back(self, gang_id: int) -> str:
        """Return why the queue took a gang's share back; "" if the gang has it."""
        for name in self._gangs.get(gang_id, ()):
            found = self._view.objects.get(name)
            if found is not None and found.taken_back:
                return f"{self.name} took its share of the cluster back: {found.reason}"
        return ""

    def pod_marks(self, gang_id: int, job_id: int | None, node: str) -> dict[str, str]:
        """Return the annotations of a gang's pod on a node."""
        name = self._object_of(gang_id, job_id, node)
        return self._dialect.pod_marks(name) if name else {}

    def _object_of(self, gang_id: int, job_id: int | None, node: str) -> str:
        """Return the object to which a gang's pod on a node belongs; "" if there is none."""
        mine = self._gangs.get(gang_id, set()) | {
            name for name in self._places if job_id is not None and self._is_of(name, job_id)
        }
        on_node = (
            name for name in sorted(mine) if any(place.node == node for place in self._places.get(name, ()))
        )
        return next(on_node, next(iter(sorted(mine)), ""))

    # --- answers ------------------------------------------------------------------------------

    def _answer(
        self, name: str, request: QueueRequest, placed: Sequence[PlacedGang]
    ) -> QueueWait | tuple[Place, ...]:
        found = self._view.objects.get(name)
        if found is None:
            return self._submitted(name, request)
        if found.marks.get(SPEC_MARK) != digest(request) or found.taken_back:
            self._places.pop(name, None)
            self._begin(name, self._delete(name))
            return QueueWait(f"is being submitted to {self.name}")
        if not found.replicas:
            words = f" ({found.reason})" if found.reason else ""
            return QueueWait(f"waits in {self.name}'s queue{words}", for_slots=True)
        if name not in self._places:
            places = self._choose(request, found, placed)
            if not places:
                return QueueWait(f"has its share from {self.name}, and waits for free slots", for_slots=True)
            self._places[name] = places
        return self._places[name]

    def _choose(
        self, request: QueueRequest, found: GangRequest, placed: Sequence[PlacedGang]
    ) -> tuple[Place, ...]:
        slots, _ = self._slots()
        return choose(request, found.replicas, slots, taken_slots(placed, self._places.values()))

    def _submitted(self, name: str, request: QueueRequest) -> QueueWait:
        if name in self._refused:
            return QueueWait(f"was not taken by {self.name}, which is asked again: {self._refused[name]}")
        self._begin(name, self._create(name, request))
        return QueueWait(f"is being submitted to {self.name}")

    # --- what belongs to which gang -------------------------------------------------------------

    def _name(self, job_id: int, attempt: int) -> str:
        return f"{self._names.cluster}-job-{job_id}-{attempt}"

    def _is_of(self, name: str, job_id: int) -> bool:
        return name.startswith(f"{self._names.cluster}-job-{job_id}-")

    def _bind(self, placed: Sequence[PlacedGang]) -> None:
        """Note which objects gangs have, also at the objects: a gang may outlive its job and this service."""
        gangs = {gang.gang_id for gang in placed}
        self._gangs = {gang_id: names for gang_id, names in self._gangs.items() if gang_id in gangs}
        for name, found in self._view.objects.items():
            if (label := found.labels.get(GANG_LABEL, "")).isdigit() and int(label) in gangs:
                self._gangs.setdefault(int(label), set()).add(name)
        for gang in placed:
            name = self._name(gang.job_id, gang.attempt) if gang.job_id is not None else ""
            if (found := self._view.objects.get(name)) is not None:
                self._gangs.setdefault(gang.gang_id, set()).add(name)
                if found.labels.get(GANG_LABEL) != str(gang.gang_id):
                    self._begin(name, self._mark(name, gang.gang_id))

    def _held(self, placed: Sequence[PlacedGang]) -> set[str]:
        names = set[str]().union(*self._gangs.values())
        return names | {self._name(gang.job_id, gang.attempt) for gang in placed if gang.job_id is not None}

    def _give_back(self, needed: Collection[str]) -> None:
        for known in (self._places, self._refused):
            for name in known.keys() - needed:
                del known[name]
        for name in self._view.objects.keys() - needed:
            self._begin(name, self._delete(name))

    # --- in the background ----------------------------------------------------------------------

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Do one thing at a time with each object."""
        if name in self._works:
            work.close()
            return
        self._works[name] = task = asyncio.create_task(self._patiently(work))
        task.add_done_callback(lambda _: self._done(name))

    def _done(self, name: str) -> None:
        self._works.pop(name, None)
        self._on_change()

    async def _patiently(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ApiError as error:
            self._log.warning("%s: %s", self.name, error)
            await asyncio.sleep(_AGAIN_S)

    async def _create(self, name: str, request: QueueRequest) -> None:
        _, gpus = self._slots()
        metadata = {
            "name": name,
            "labels": self._names.labels(QUEUE, job=request.job_id),
            "annotations": {SPEC_MARK: digest(request)},
        }
        try:
            made = await self._api.create(self._path, self._dialect.document(metadata, request, gpus=gpus))
        except ApiRefused as error:
            self._refused[name] = error.message
            asyncio.get_running_loop().call_later(_REFUSED_AGAIN_S, self._forget_refusal, name)
            return
        self._view.put(made)

    def _forget_refusal(self, name: str) -> None:
        self._refused.pop(name, None)
        self._on_change()

    async def _mark(self, name: str, gang_id: int) -> None:
        labels = {"metadata": {"labels": {GANG_LABEL: str(gang_id)}}}
        self._view.put(await self._api.merge(f"{self._path}/{name}", labels))

    async def _delete(self, name: str) -> None:
        await self._api.delete(f"{self._path}/{name}")
        while name in self._view.objects:  # noqa: ASYNC110 - the watch wakes the reconciler, not this
            await asyncio.sleep(0.1)


def digest(request: QueueRequest) -> str:
    """Return a mark that another request of the same job does not have."""
    return hashlib.sha256(repr(request).encode()).hexdigest()[:16]
