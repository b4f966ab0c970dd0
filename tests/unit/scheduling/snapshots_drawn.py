"""Random snapshots of small clusters: waiting and running jobs, warm gangs, servers, a node that is down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from hypothesis import strategies as st

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.jobs.slot_numbers import HALF, in_halves, size
from minicluster_hub.scheduling.allocation.filling import fill
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places
from minicluster_hub.scheduling.base import JobView, Snapshot, Topology, Usage, WarmGang

NOW = 10_000.0
OWNERS = ("ada", "bob", "cid")


def alone_on_nodes(job: JobView) -> JobView:
    """Return a job that is as the service makes it: halves of GPUs are on nodes of their own."""
    return replace(job, one_replica_per_node=True) if job.slots_per_replica == HALF else job


requests = st.builds(
    lambda least, more, **given: alone_on_nodes(
        JobView(job_id=0, min_replicas=least, max_replicas=least + more, **given)
    ),
    st.integers(1, 4),
    st.sampled_from([0, 0, 1, 3]),
    slots_per_replica=st.sampled_from([1, 1, 1, 2, 3, HALF, HALF]),
    one_replica_per_node=st.booleans(),
    owner=st.sampled_from(OWNERS),
    submitted_at=st.integers(0, 9_000).map(float),
    priority=st.sampled_from([50, 50, 1, 99]),
    since=st.integers(9_000, int(NOW)).map(float),
    consumed_slot_s=st.sampled_from([0.0, 500.0, 50_000.0]),
    remaining_s=st.sampled_from([None, 1.0, 300.0, 20_000.0]),
    time_limit_s=st.sampled_from([None, 600.0, 40_000.0]),
    rates=st.sampled_from([(), ((1, 2.0),), ((1, 2.0), (2, 3.5))]),
    gradient_bytes=st.sampled_from([0, 4_000_000]),
)
usages = st.dictionaries(
    st.sampled_from(OWNERS), st.builds(Usage, st.sampled_from([0.0, 3e4]), st.sampled_from([1.0, 3.0]))
)


@st.composite
def snapshots(draw: st.DrawFn, most_jobs: int = 8) -> Snapshot:
    """Draw a snapshot in which no slot is held twice."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    slots = {f"n{index}": count for index, count in enumerate(sizes)}
    free = FreeSlots({node: range(count) for node, count in slots.items()})
    servers = tuple(_servers(draw, free))
    asked = draw(st.lists(requests, max_size=most_jobs))
    jobs = [_settled(draw, replace(job, job_id=number), free) for number, job in enumerate(asked, 1)]
    warm = list(_warm(draw, free))
    releasing = FreeSlots(dict.fromkeys(slots, ()))
    for place in free.all():
        if draw(st.integers(0, 4)) == 0:
            free.remove((place,))
            releasing.add((place,))
    down = draw(st.sampled_from([None, None, *slots]))
    warm = [gang for gang in warm if down not in dict(gang.places)]
    up = {node: count for node, count in slots.items() if node != down}
    free, releasing = _up(free, up), _up(releasing, up)
    for gang in warm:
        free.add(gang.places)
    return Snapshot(
        now=NOW,
        jobs=tuple(sorted(jobs, key=lambda job: job.submit_order)),
        free=free,
        topology=Topology(up),
        warm=tuple(warm),
        releasing=releasing,
        servers=servers,
        usage=draw(usages),
        growing=frozenset(
            job.job_id
            for job in jobs
            if job.one_replica_per_node and not job.is_preemptible(NOW) and draw(st.booleans())
        ),
    )


def halves_of(places: Places) -> list[tuple[str, int]]:
    """Return the halves of all slots; two jobs may have those of one slot."""
    return [(node, half) for node, slots in places for half in in_halves(slots)]


def _up(free: FreeSlots, nodes: dict[str, int]) -> FreeSlots:
    return FreeSlots({node: free.numbers(node) for node in nodes})


def _settled(draw: st.DrawFn, job: JobView, free: FreeSlots) -> JobView:
    """Let a job wait, or run on slots that fit, preemptible now, later or never."""
    not_preemptible_until = draw(st.sampled_from([None, None, 0.0, 0.0, NOW + 60.0, inf]))
    replicas = draw(st.integers(job.min_replicas, job.max_replicas))
    nodes = draw(st.permutations(free.names))
    places = None if not_preemptible_until is None else fill(job, replicas, free, nodes)
    if places is None or not_preemptible_until is None:
        return job
    free.remove(places)
    return replace(job, places=places, not_preemptible_until=not_preemptible_until)


def _servers(draw: st.DrawFn, free: FreeSlots) -> Iterator[ServerRecord]:
    for number in range(1, draw(st.sampled_from([1, 1, 2]))):
        places = _one(draw, free)
        free.remove(places)
        until = draw(st.sampled_from([None, NOW - 10.0, NOW + 500.0]))
        for node, slots in places:
            yield ServerRecord(number, draw(st.sampled_from(OWNERS)), "", node, slots, until, 0.0)


def _warm(draw: st.DrawFn, free: FreeSlots) -> Iterator[WarmGang]:
    for number in range(draw(st.integers(0, 2))):
        places = _one(draw, free)
        free.remove(places)
        if places:
            idle_since = draw(st.sampled_from([NOW - 5.0, NOW - 50.0]))
            each = size(places[0][1][0])
            yield WarmGang(number, draw(st.sampled_from(OWNERS)), places, each, idle_since)


def _one(draw: st.DrawFn, free: FreeSlots) -> Places:
    """Draw a free slot."""
    return tuple((node, slots[:1]) for node, slots in draw(st.permutations(free.all()))[:1])
