"""The lighthouse of a fault-tolerant attempt dies or is cut off: the ranks connect to it again."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from .live import Lighthouse, Live, longest_pause_s, now, show

pytest.importorskip("torchft")


class Door:
    """A proxy in front of a lighthouse; `cut` keeps connections open, but forwards nothing more."""

    def __init__(self) -> None:
        self.address = ""
        self._server: asyncio.Server | None = None
        self._target = ""
        self._pumps: set[asyncio.Task[None]] = set()

    async def open(self, target: str) -> None:
        self._target = target
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self, target: str) -> None:
        """Forward new connections to another lighthouse."""
        self._target = target
        for pump in self._pumps:
            pump.cancel()

    async def close(self) -> None:
        self.cut(self._target)
        if self._server:
            self._server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        for source, sink in ((reader, back), (there, writer)):
            pump = asyncio.create_task(_pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    sink.close()


@pytest.mark.full("tests/service/engines/test_local_lighthouses has one that starts again at its address")
@pytest.mark.alone("on a busy machine one of the ranks is taken for lost meanwhile")
async def test_a_lighthouse_that_was_killed_is_found_again(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    await live.run(3, epochs=8)
    await live.until_step(1, 20)
    live.lighthouse.kill()
    at = now()
    await asyncio.to_thread(live.lighthouse.start_again)
    await live.over()
    steps = live.took(0)
    show(capsys, f"{longest_pause_s(steps, at):.2f} s without a step while the lighthouse was away")
    assert {one.members for one in steps} == {(0, 1, 2)}


@pytest.mark.full("of a lighthouse that is gone, the gate has the one that starts again at its address")
@pytest.mark.alone("on a busy machine one of the ranks may be taken for lost at the last step")
async def test_a_lighthouse_that_was_cut_off_is_found_again_elsewhere(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    door, other = Door(), Lighthouse()
    await door.open(live.lighthouse.address)
    live.address = door.address
    await live.run(3, epochs=8)
    await live.until_step(1, 20)
    at = now()
    door.cut(other.address)
    await live.over()
    await door.close()
    other.kill()
    steps = live.took(0)
    show(capsys, f"{longest_pause_s(steps, at):.2f} s without a step after the lighthouse was cut off")
    assert steps[-1].members == (0, 1, 2)


@pytest.mark.full("the same for a rank that is slow to notice")
@pytest.mark.alone("on a busy machine one of the ranks may be taken for lost at the last step")
async def test_a_rank_that_looks_late_finds_the_other_lighthouse_too(live: Live) -> None:
    door, other = Door(), Lighthouse()
    await door.open(live.lighthouse.address)
    live.address = door.address
    await live.run(3, epochs=40)
    await live.until_step(1, 20)
    frozen = live.cluster.processes(2)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    door.cut(other.address)
    async with asyncio.timeout(60):
        # By now the other lighthouse has formed as many quorums as the frozen rank has seen.
        while not any(one.counted and one.members == (0, 1) for one in live.took(0)):
            await asyncio.sleep(0.02)
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    await live.over()
    await door.close()
    other.kill()
    assert live.took(0)[-1].members == (0, 1, 2)


@pytest.mark.full("in the gate a rank dies by itself")
async def test_a_rank_and_the_lighthouse_die_together(live: Live) -> None:
    await live.run(3, epochs=6)
    await live.until_step(1, 20)
    live.lighthouse.kill()
    live.lose(2)
    await asyncio.to_thread(live.lighthouse.start_again)
    await live.over()
    assert live.took(0)[-1].members == (0, 1)
