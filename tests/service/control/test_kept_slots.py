"""Slots that a custom policy keeps free, from its process to the jobs' slots."""

from minicluster_hub.policy.custom_policy import CustomPolicies
from minicluster_hub.scheduling.allocation.assign import assign
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import JobView, Snapshot, Topology
from minicluster_hub.scheduling.placement.pack import Pack

KEEPS_NODE_1 = """
from minicluster_hub.scheduling.base import Grant, Plan

def plan(snapshot):
    return Plan(tuple(Grant(job.job_id, 1) for job in snapshot.jobs), kept=(("node-1", (0,)),))
"""
SLOTS = {"node-1": 1, "node-2": 2}


def nodes_of(policy, count):
    """Return the nodes on which that many jobs with one slot are placed."""
    jobs = tuple(JobView(number, "ada", float(number), 1, 1) for number in range(count))
    free = FreeSlots({node: range(slots) for node, slots in SLOTS.items()})
    places = assign(Snapshot(9.0, jobs, free, Topology(SLOTS)), policy, Pack()).places
    return [node for ((node, _),) in places.values()]


def test_slots_that_are_kept_are_taken_last(tmp_path):
    (tmp_path / "keeps.py").write_text(KEEPS_NODE_1)
    policy = CustomPolicies.in_processes(tmp_path).policy("keeps", {})
    try:
        policy.load()
        assert nodes_of(policy, 2) == ["node-2", "node-2"]
        assert nodes_of(policy, 3) == ["node-2", "node-2", "node-1"]
    finally:
        policy.close()
