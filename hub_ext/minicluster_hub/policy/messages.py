"""Snapshots and plans as JSON: the content of the messages between the job service and a policy's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import Grant, JobView, Plan, Snapshot, Topology, Usage, WarmGang

_JOB, _GANG, _SERVER, _USAGE = (
    tuple(field.name for field in fields(kind)) for kind in (JobView, WarmGang, ServerRecord, Usage)
)


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "now": snapshot.now,
        "jobs": [_values(job, _JOB) for job in snapshot.jobs],
        "free": _slots(snapshot.free),
        "slots": dict(snapshot.topology.slots),
        "whole_only": sorted(snapshot.topology.whole_only),
        "link_bytes_s": snapshot.topology.link_bytes_s,
        "warm": [_values(gang, _GANG) for gang in snapshot.warm],
        "leaving": _slots(snapshot.releasing),
        "servers": [_values(server, _SERVER) for server in snapshot.servers],
        "usage": {owner: _values(usage, _USAGE) for owner, usage in snapshot.usage.items()},
        "growing": sorted(snapshot.growing),
        "held_out": list(snapshot.delayed_since.items()),
    }


def snapshot_from_json(message: Mapping[str, Any]) -> Snapshot:
    """Raises KeyError, TypeError, ValueError."""
    whole_only = frozenset(message["whole_only"])
    return Snapshot(
        now=message["now"],
        jobs=tuple(JobView(*_tuples(values)) for values in message["jobs"]),
        free=FreeSlots(message["free"], whole_only),
        topology=Topology(message["slots"], message["link_bytes_s"], whole_only),
        warm=tuple(WarmGang(*_tuples(values)) for values in message["warm"]),
        releasing=FreeSlots(message["leaving"], whole_only),
        servers=tuple(ServerRecord(*_tuples(values)) for values in message["servers"]),
        usage={owner: Usage(*values) for owner, values in message["usage"].items()},
        growing=frozenset(message["growing"]),
        delayed_since=dict(message["held_out"]),
    )


def plan_to_json(plan: Plan) -> dict[str, Any]:
    grants = [[grant.job_id, grant.replicas] for grant in plan.grants]
    return {"grants": grants, "again_at": plan.again_at, "in_turn": plan.head_blocks, "kept": plan.reserved}


def plan_from_json(message: Mapping[str, Any]) -> Plan:
    """Return a plan; scheduling.own.sound checks it. Raises KeyError, TypeError, ValueError."""
    grants = tuple(Grant(job_id, replicas) for job_id, replicas in message["grants"])
    return Plan(grants, message["again_at"], message["in_turn"], message["kept"])


def _values(record: object, names: tuple[str, ...]) -> list[Any]:
    return [getattr(record, name) for name in names]


def _slots(slots: FreeSlots) -> dict[str, tuple[int, ...]]:
    return {node: slots.numbers(node) for node in slots.names}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, cast("list[Any]", value))) if isinstance(value, list) else value
