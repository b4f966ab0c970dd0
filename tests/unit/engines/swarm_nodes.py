"""A Swarm node as reported by its engine, for tests of node states."""

from __future__ import annotations

from dataclasses import replace

from minicluster_hub.engines.swarm.view import SwarmNode


def node(number: int, **changes: object) -> SwarmNode:
    made = SwarmNode(
        id=f"id{number}",
        name=f"node{number}",
        address=f"10.0.0.{number}",
        up=True,
        manager=number == 1,
        availability="active",
        gpus=(),
        labels={},
        engine_version="26.1.5+dfsg1",
        memory_bytes=64 * 10**9,
        cpus=16.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]
