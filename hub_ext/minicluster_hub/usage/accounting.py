"""Usage accounting: which owner held which slots when; for fair shares, quotas and reports."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from minicluster_hub.jobs.records import Lease, NodeView, StoredState, UseRecord
from minicluster_hub.jobs.slot_numbers import slot_of, total
from minicluster_hub.scheduling.base import Snapshot, Usage
from minicluster_hub.scheduling.decayed_usage import Meter
from minicluster_hub.scheduling.limits import PERIOD_S, Quotas, SlotShare
from minicluster_hub.scheduling.quotas import QuotaResult, apply_quotas
from minicluster_hub.store import Store
from minicluster_hub.usage.entitlements import Entitlements

WEEK_S = 7 * 86400.0
_HALF_LIVES = 10
"""Usage older than this many half-lives is ignored: it counts less than a thousandth."""

Holder = tuple[int | None, int | None, int | None]


class UsageAccounting:
    """half_life_s: time after which use counts half in fair shares. weights: of owners and groups; default 1.

    quotas: those of the settings, until an admin changes them.
    """

    def __init__(
        self, store: Store, half_life_s: float, weights: Mapping[str, float], quotas: Quotas | None = None
    ) -> None:
        self.entitlements = Entitlements(store, quotas or Quotas(), weights)
        self._store = store
        self._half_life_s = half_life_s
        self._meter = Meter(half_life_s)
        self._slot_share = SlotShare()
        self._open: dict[Holder, UseRecord] | None = None
        self._consumed: dict[int, float] = {}
        """Slot seconds of ended attempts, by open job."""
        self._ended: defaultdict[str, deque[UseRecord]] = defaultdict(deque)
        """Use of GPUs that ended within the period of quotas, by owner."""

    @property
    def quotas(self) -> Quotas:
        return replace(self.entitlements.quotas, slot_share=self._slot_share)

    def note(self, stored: StoredState, nodes: Sequence[NodeView], now: float) -> None:
        """Store which slots each owner holds, if that has changed since the last call."""
        self._slot_share = _slot_share(nodes)
        open_jobs = {job.id for job in stored.jobs}
        self._consumed = {job_id: slot_s for job_id, slot_s in self._consumed.items() if job_id in open_jobs}
        held = {use.holder: use for use in _held(stored, nodes, now)}
        before = self._load(now)
        over = [use for holder, use in before.items() if holder not in held]
        new = [use for holder, use in held.items() if holder not in before]
        if not over and not new:
            return
        began = self._store.usage.change([use.id for use in over], new, now)
        self._meter.read(now)
        for use in over:
            del before[use.holder]
            self._remember(use, now)
            self._meter.add(use.owner, -use.slots)
        for use in began:
            before[use.holder] = use
            self._meter.add(use.owner, use.slots)

    def consumed(self, job_id: int) -> float:
        """Return the slot seconds of a job's attempts that have ended."""
        return self._consumed.get(job_id, 0.0)

    def apply_quotas(self, snapshot: Snapshot) -> QuotaResult:
        """Return the snapshot without the jobs that quotas hold back."""
        return apply_quotas(snapshot, self.quotas, lambda owner: self.gpu_hours(owner, snapshot.now))

    def gpu_hours(self, owner: str, now: float) -> float:
        """Return an owner's GPU hours in the period of quotas."""
        since, ended = now - PERIOD_S, self._ended[owner]
        while ended and (ended[0].ended_at or now) <= since:
            ended.popleft()
        held = (use for use in self._load(now).values() if use.owner == owner)
        seconds = ((use.gpus, (use.ended_at or now) - max(use.began_at, since)) for use in chain(ended, held))
        return sum(gpus * max(0.0, held_s) for gpus, held_s in seconds) / 3600

    def _remember(self, use: UseRecord, ended_at: float) -> None:
        if use.gpus:
            self._ended[use.owner].append(replace(use, ended_at=ended_at))
        if use.job_id is not None:
            before = self._consumed.get(use.job_id, 0.0)
            self._consumed[use.job_id] = before + use.slots * max(0.0, ended_at - use.began_at)

    def usage(self, now: float) -> Mapping[str, Usage]:
        """Return the decayed use and the weight of each owner."""
        used = self._meter.read(now)
        weighed = {
            owner: replace(used.get(owner, Usage()), weight=weight)
            for owner, weight in self.entitlements.weights().items()
        }
        return {**used, **weighed}

    def _load(self, now: float) -> dict[Holder, UseRecord]:
        """Return the open records by holder; the first call reads all from the store."""
        if self._open is None:
            self._open = {}
            self._meter = Meter(self._half_life_s, at=now)
            for use in self._store.usage.since(now - max(PERIOD_S, _HALF_LIVES * self._half_life_s)):
                self._meter.remember(use.owner, use.slots, use.began_at, use.ended_at)
                if use.ended_at is None:
                    self._open[use.holder] = use
                else:
                    self._remember(use, use.ended_at)
        return self._open


def _held(stored: StoredState, nodes: Iterable[NodeView], now: float) -> Iterator[UseRecord]:
    """Yield the slots that each task of a job and each notebook server holds, without warm gangs."""
    kinds = {node.name: node.slot_kinds for node in nodes}
    leases: dict[Holder, list[Lease]] = {}
    for lease in stored.leases:
        if not lease.warm:
            leases.setdefault((lease.task_id, lease.job_id, lease.server_id), []).append(lease)
    for (task_id, job_id, server_id), mine in leases.items():
        first = mine[0]
        there = kinds.get(first.node, ())
        numbers = [lease.slot for lease in mine]
        gpus = total(one for one in numbers if slot_of(one) < len(there) and there[slot_of(one)] == "gpu")
        slots = total(numbers)
        yield UseRecord(0, first.owner, job_id, server_id, task_id, first.node, slots, gpus, now, None)


def _slot_share(nodes: Iterable[NodeView]) -> SlotShare:
    shares = [
        (node.cpus / len(node.slot_kinds), node.memory_bytes / len(node.slot_kinds) / 1e9)
        for node in nodes
        if node.slot_kinds
    ]
    cpus, memory_gb = zip(*shares, strict=True) if shares else ((), ())
    return SlotShare(max(cpus, default=0.0), max(memory_gb, default=0.0))
