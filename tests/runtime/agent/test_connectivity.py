"""Ranks start once all tasks of their attempt reach each other: real sockets, some of which open later."""

from __future__ import annotations

import asyncio
import socket

from minicluster.runtime.diagnosis.connectivity import ConnectivityCheck


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


async def test_all_that_listen_are_reached_and_nobody_is_told():
    changes: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        peers = [f"127.0.0.1:{server.getsockname()[1]}" for server in (one, other)]
        connectivity = ConnectivityCheck(peers, lambda: changes.append(1))
        await connectivity.reach_all()
    assert (connectivity.unreached, changes) == ((), [])


async def test_who_is_alone_meets_nobody():
    await ConnectivityCheck((), lambda: None).reach_all()


async def test_who_is_not_reached_is_told_and_waited_for():
    """One address refuses connections for a while, another name cannot be resolved."""
    changed = asyncio.Event()
    late, nowhere = f"127.0.0.1:{a_free_port()}", "no-such-task:4000"
    connectivity = ConnectivityCheck((late, nowhere), changed.set)
    waiting = asyncio.create_task(connectivity.reach_all())
    await changed.wait()
    assert connectivity.unreached == (late, nowhere)

    changed.clear()
    server = socket.create_server(("127.0.0.1", int(late.rpartition(":")[2])))
    await changed.wait()
    assert connectivity.unreached == (nowhere,)

    connectivity.peers = (late,)  # as if the service drops a task
    await waiting
    assert connectivity.unreached == ()
    server.close()
