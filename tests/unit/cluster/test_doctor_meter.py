"""How the doctor measures links: each pair once, one transfer at a time, and only by known nodes."""

from __future__ import annotations

import asyncio

import pytest

from minicluster_hub.cluster.doctor.messages import REPORT_PREFIX, Peer
from minicluster_hub.cluster.doctor.meter import LinkMeter, Unmeasured, partners
from minicluster_hub.cluster.doctor.reports import send_report

from ...patience import WITHIN_S

GB = 10**9


@pytest.mark.parametrize("size", range(1, 15))
def test_each_pair_is_measured_once_and_nobody_measures_many(size: int) -> None:
    ids = [f"n{number:02}" for number in range(size)]
    pairs = [frozenset((own, peer)) for own in ids for peer in partners(ids, own)]
    assert len(pairs) == len(set(pairs))
    assert all(len(pair) == 2 for pair in pairs)
    if size <= 7:
        assert len(pairs) == size * (size - 1) // 2
    assert all(len(partners(ids, own)) <= 3 for own in ids)


async def test_the_meter_measures_both_ways_and_clocks() -> None:
    meters = [LinkMeter("word", 0), LinkMeter("word", 0)]
    ports = [await meter.open() for meter in meters]
    asking = LinkMeter("word", ports[1])
    peer = Peer(id="b", name="b", address="127.0.0.1")
    assert abs(await asking.clock_ahead_s(peer)) < 0.05
    for verb in ("send", "receive"):
        async with asyncio.timeout(WITHIN_S):
            # A short load on the machine affects one figure.
            while await asking.transfer_mbit(peer, verb, WITHIN_S) <= 500:
                pass
    for meter in meters:
        meter.close()


async def test_transfers_wait_for_each_other() -> None:
    meter = LinkMeter("word", 0)
    port = await meter.open()
    peer = Peer(id="b", name="b", address="127.0.0.1")
    asking = [LinkMeter("word", port) for _ in range(3)]
    rates = await asyncio.gather(*(one.transfer_mbit(peer, "send", 10) for one in asking))
    assert len(rates) == 3
    with pytest.raises(Unmeasured, match="busy"):
        await asyncio.gather(*(one.transfer_mbit(peer, "send", 0.2) for one in asking))
    meter.close()


async def test_a_stranger_gets_nothing_from_the_meter() -> None:
    meter = LinkMeter("word", 0)
    port = await meter.open()
    for line in (b"other clock\n", b"GET / HTTP/1.1\r\n", b"\xff\xfe\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(line)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
    meter.close()


async def test_a_report_of_another_node_is_printed_for_who_has_the_word(capsys) -> None:  # type: ignore[no-untyped-def]
    meter = LinkMeter("word", 0)
    port = await meter.open()
    document = '{"node_id": "' + 100_000 * "b" + '"}'
    await send_report("127.0.0.1", port, "other", "{}")
    await send_report("127.0.0.1", port, "word", document)
    assert capsys.readouterr().out == f"{REPORT_PREFIX}{document}\n"
    meter.close()
    await send_report("127.0.0.1", 1, "word", document)  # Nobody is there: its own log has it.


async def test_a_peer_that_never_comes_is_told_in_words() -> None:
    with pytest.raises(Unmeasured, match="refused at port 1/tcp"):
        await LinkMeter("word", 1).wait_for(Peer(id="b", name="b", address="127.0.0.1"), 0.3)


async def test_a_peer_of_another_examination_is_waited_for() -> None:
    meter = LinkMeter("former", 0)
    port = await meter.open()
    peer = Peer(id="b", name="b", address="127.0.0.1")
    with pytest.raises(Unmeasured, match="another run of doctor"):
        await LinkMeter("word", port).wait_for(peer, 0.3)
    await LinkMeter("former", port).wait_for(peer, WITHIN_S)
    meter.close()
