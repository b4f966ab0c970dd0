"""Who held which slots, from the accounting's records, and what waits. Pure.

Of other users' jobs it shows owner, number, slots and times, but no text that they wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from minicluster.wire import TIMELINE_BARS, Timeline, TimelineBar, TimelineNode, TimelineWait
from minicluster_hub.jobs.records import JobRecord, NodeView, StoredState, UseRecord, Wait
from minicluster_hub.jobs.slot_numbers import is_half

_MOST_WAITING = 200


@dataclass(frozen=True)
class TimelineInputs:
    """uses: of that time, in any order. names: of jobs that the asker may see. waits: in their order.

    owner: the asker; None: an admin, who sees all reasons and names.
    """

    now: float
    low: float
    high: float
    nodes: Sequence[NodeView]
    uses: Sequence[UseRecord]
    stored: StoredState
    waits: Sequence[Wait]
    names: Mapping[int, str]
    owner: str | None


def timeline(inputs: TimelineInputs) -> Timeline:
    """Return the bars of each node, each in rows of its own, and the waiting jobs."""
    shown = sorted((use for use in inputs.uses if _overlaps(use, inputs)), key=lambda use: use.began_at)
    cut = max(0, len(shown) - TIMELINE_BARS)
    bars = tuple(_bars(shown[cut:], inputs))
    return Timeline(
        now=inputs.now,
        low=inputs.low,
        high=inputs.high,
        nodes=tuple(_nodes(inputs.nodes, bars)),
        bars=bars,
        waiting=tuple(_waiting(inputs)),
        cut=cut,
    )


def _overlaps(use: UseRecord, inputs: TimelineInputs) -> bool:
    ended = inputs.now if use.ended_at is None else use.ended_at
    return use.began_at < inputs.high and ended >= inputs.low and use.slots > 0


def _nodes(nodes: Sequence[NodeView], bars: Sequence[TimelineBar]) -> Iterator[TimelineNode]:
    """Yield the nodes, and those that are gone but were used."""
    for node in nodes:
        kind = "gpu" if "gpu" in node.slot_kinds else "cpu"
        yield TimelineNode(name=node.name, kind=kind, slots=len(node.slot_kinds), up=node.up)
    known = {node.name for node in nodes}
    for name in sorted({bar.node for bar in bars} - known):
        lanes = max(lane for bar in bars if bar.node == name for lane in bar.lanes)
        yield TimelineNode(name=name, kind="cpu", slots=lanes + 1, up=False)


def _bars(uses: Sequence[UseRecord], inputs: TimelineInputs) -> Iterator[TimelineBar]:
    slots = {node.name: len(node.slot_kinds) for node in inputs.nodes}
    held = _held_slots(inputs.stored)
    rows: dict[str, _Rows] = {}
    open_uses = [use for use in uses if use.ended_at is None]
    for use in open_uses:
        rows.setdefault(use.node, _Rows()).hold(held.get(use.holder, ()), use.began_at)
    for use in uses:
        of_node = rows.setdefault(use.node, _Rows())
        known = held.get(use.holder) if use.ended_at is None else None
        lanes = known or of_node.place(use, slots.get(use.node, 0))
        yield TimelineBar(
            node=use.node,
            lanes=tuple(lanes),
            owner=use.owner,
            began_at=use.began_at,
            ended_at=use.ended_at,
            job_id=use.job_id,
            server=use.server_id is not None,
            name=inputs.names.get(use.job_id or 0, ""),
        )


def _held_slots(stored: StoredState) -> dict[tuple[int | None, int | None, int | None], tuple[int, ...]]:
    held: dict[tuple[int | None, int | None, int | None], tuple[int, ...]] = {}
    for lease in stored.leases:
        if not lease.warm and not is_half(lease.slot):  # Halves have rows of their own.
            key = (lease.task_id, lease.job_id, lease.server_id)
            held[key] = (*held.get(key, ()), lease.slot)
    return held


@dataclass
class _Rows:
    """The rows of one node. free_at: when each is free again. held_from: since when it is held until now.

    The accounting knows how many slots were held, not which: of the past, any free row will do.
    """

    free_at: dict[int, float] = field(default_factory=dict[int, float])
    held_from: dict[int, float] = field(default_factory=dict[int, float])

    def hold(self, lanes: Iterable[int], since: float) -> None:
        for lane in lanes:
            self.held_from[lane] = since

    def place(self, use: UseRecord, slots: int) -> Sequence[int]:
        """Return rows for what was held; more than the node has slots, if it had more at that time."""
        chosen: list[int] = []
        lane = 0
        while len(chosen) < use.slots:
            if self._is_free(lane, use) or lane >= slots + use.slots:
                chosen.append(lane)
                self.free_at[lane] = float("inf") if use.ended_at is None else use.ended_at
            lane += 1
        return chosen

    def _is_free(self, lane: int, use: UseRecord) -> bool:
        before = self.free_at.get(lane, 0.0) <= use.began_at
        held_from = self.held_from.get(lane)
        return before and (held_from is None or (use.ended_at is not None and use.ended_at <= held_from))


def _waiting(inputs: TimelineInputs) -> Iterator[TimelineWait]:
    jobs = {job.id: job for job in inputs.stored.jobs}
    for wait in inputs.waits[:_MOST_WAITING]:
        job = jobs.get(wait.job_id)
        if job is not None:
            yield _wait(job, wait, sees_all=inputs.owner in (None, job.owner))


def _wait(job: JobRecord, wait: Wait, *, sees_all: bool) -> TimelineWait:
    return TimelineWait(
        job_id=job.id,
        owner=job.owner,
        position=wait.position,
        slots=(job.spec.nodes.min if job.spec.nodes else 1) * job.spec.slots_per_replica,
        name=job.spec.name if sees_all else "",
        reason=wait.reason if sees_all else "",
        expected_start_at=wait.expected_start_at,
    )


def own_jobs(uses: Iterable[UseRecord], owner: str | None, most: int) -> Collection[int]:
    """Return the newest jobs whose names the asker may see."""
    ids = {use.job_id for use in uses if use.job_id is not None and owner in (None, use.owner)}
    return sorted(ids)[-most:]
