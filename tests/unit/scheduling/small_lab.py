"""Small snapshots of a lab of three nodes with four slots each, and policies' plans for them."""

from dataclasses import replace
from math import inf

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import JobView, Snapshot, Topology

NOW = 100_000.0
DAY_S = 86_400.0
LAB = {"node-1": 4, "node-2": 4, "node-3": 4}


def waits(job_id, slots=1, *, most=None, since=NOW - 60.0, owner="ada", **more):
    """Return a job that accepts any free slots and has waited for a minute."""
    given = {"submitted_at": since, "since": since, "one_replica_per_node": False, **more}
    return JobView(job_id, owner, min_replicas=slots, max_replicas=most or slots, **given)


def runs(job_id, slots, *, least=None, since=NOW - 1000.0, movable=True, **more):
    """Return a running job, which gets so many slots in `snapshot` and may be moved."""
    held = {"places": (("?", tuple(range(slots))),), "not_preemptible_until": 0.0 if movable else inf}
    return waits(job_id, least or slots, since=since, **{"most": slots, **held, **more})


def snapshot(*jobs, nodes=LAB, now=NOW, **more):
    """Return a snapshot in which the running jobs hold the first slots, one after the other."""
    free = FreeSlots({node: range(count) for node, count in nodes.items()})
    settled = []
    for job in jobs:
        slots = [(node, slot) for node, left in free.all() for slot in left]
        taken = slots[: sum(len(held) for _, held in job.places)]
        names = dict.fromkeys(node for node, _ in taken)
        places = tuple((name, tuple(slot for node, slot in taken if node == name)) for name in names)
        free.remove(places)
        settled.append(replace(job, places=places))
    return Snapshot(now, tuple(settled), free, Topology(nodes), **more)


def planned(rule, *jobs, **more):
    """Return the number of replicas that the plan gives to each job."""
    return planned_at(rule, snapshot(*jobs, **more))


def planned_at(rule, here):
    return {grant.job_id: grant.replicas for grant in rule.plan(here).grants}


def again_in_s(rule, *jobs, **more):
    here = snapshot(*jobs, **more)
    again_at = rule.plan(here).again_at
    return None if again_at is None else again_at - here.now
