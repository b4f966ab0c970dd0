"""The probe: runs for a few seconds on every node, measures, prints one line, and serves its peers.

It needs no Docker socket and no capabilities: only the host's network (links, clocks, ports), and the host's
/usr/bin read-only, for the version of nvidia-ctk.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from minicluster_hub.cluster.doctor.checks.node import measure
from minicluster_hub.cluster.doctor.gpu_copies import measure_copies
from minicluster_hub.cluster.doctor.messages import (
    NodeReport,
    OverlayReport,
    Peer,
    PeerLink,
    ProbeTask,
    Target,
    TargetAnswer,
)
from minicluster_hub.cluster.doctor.meter import LinkMeter, Unmeasured, error_text, partners
from minicluster_hub.cluster.doctor.reports import (
    Serve,
    print_report,
    send_report,
    start_server,
    take_report,
)

TASK_ENV, NODE_ENV = "MINICLUSTER_PROBE", "MINICLUSTER_NODE_ID"
_BODY_BYTES = 4096
_ARRIVAL_S, _BUSY_S, _ANSWER_S, _LIFE_S = 5.0, 8.0, 5.0, 60.0
_DISCARD_PORT = 9
_PATIENCE_S, _PAUSE_S, _CONNECT_S = 6.0, 0.3, 1.0


async def examine_node(task: ProbeTask, node_id: str, meter: LinkMeter) -> NodeReport:
    """Measure everything concurrently; only transfers run one by one."""
    measured = partners([peer.id for peer in task.peers], node_id)
    others = [peer for peer in task.peers if peer.id != node_id]
    own = next((peer.address for peer in task.peers if peer.id == node_id), "")
    # Only the other nodes try this node's Swarm ports.
    targets = [one for one in task.targets if not one.target.startswith(f"tcp://{own}:")]
    state = await asyncio.to_thread(measure)
    links, answers, copies = await asyncio.gather(
        asyncio.gather(*(_link(meter, peer, measure=peer.id in measured) for peer in others)),
        asyncio.gather(*map(_try, targets)),
        asyncio.to_thread(measure_copies, state.container_gpus),
    )
    return NodeReport(node_id=node_id, links=tuple(links), answers=tuple(answers), state=state, copies=copies)


async def run(environ: Mapping[str, str]) -> None:
    """Report, then serve the peers until the service is removed."""
    task, node_id = ProbeTask.model_validate_json(environ[TASK_ENV]), environ[NODE_ENV]
    report: NodeReport | OverlayReport
    if task.overlay_name:
        report, collector = await overlay_report(task, node_id)
    else:
        collector = next((peer.address for peer in task.peers if peer.id == task.collector), "")
        meter = LinkMeter(task.token, task.port)
        try:
            await meter.open()
        except OSError as error:
            print(f"port {task.port} cannot be opened: {error.strerror}", file=sys.stderr)  # noqa: T201
        report = await examine_node(task, node_id, meter)
    print_report(document := report.model_dump_json())
    if collector and task.collector != node_id:
        await send_report(collector, task.port, task.token, document)
    await asyncio.sleep(_LIFE_S)


async def _link(meter: LinkMeter, peer: Peer, *, measure: bool) -> PeerLink:
    link = route_to(peer)
    try:
        await meter.wait_for(peer, _ARRIVAL_S)
        link = link.model_copy(update={"clock_ahead_s": await meter.clock_ahead_s(peer)})
        if not measure:
            return link
        received = await meter.transfer_mbit(peer, "send", _BUSY_S)
        sent = await meter.transfer_mbit(peer, "receive", _BUSY_S)
        return link.model_copy(update={"received_mbit": received, "sent_mbit": sent})
    except (Unmeasured, OSError, TimeoutError, ValueError) as error:
        words = error_text(error) if isinstance(error, OSError) else str(error)
        return link.model_copy(update={"error": words or "the connection stalled"})


async def _try(target: Target) -> TargetAnswer:
    words, body = "", b""
    try:
        async with asyncio.timeout(_ANSWER_S):
            words, body = await _ask(target.target)
    except TimeoutError:
        words = f"no answer within {_ANSWER_S:.0f} s"
    except OSError as error:
        words = error_text(error)
    return TargetAnswer(target=target, ok=not words, words=words, set_aside=_set_aside(body))


async def _ask(target: str) -> tuple[str, bytes]:
    """Connect, and request a URL. Return the problem ("" if there is none), and the start of the body.

    The certificate is not verified: the request has no secrets, and the answer is only a status.
    """
    scheme, _, rest = target.partition("://")
    host_and_port, _, path = rest.partition("/")
    host, _, port = host_and_port.rpartition(":")
    tls = ssl._create_unverified_context() if scheme == "https" else None  # noqa: S323
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=tls)
    try:
        if scheme == "tcp":
            return "", b""
        request = f"GET /{path} HTTP/1.1\r\nHost: {host_and_port}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        status = (await reader.readline()).decode(errors="replace").strip().partition(" ")[2]
        if not status.startswith("2"):
            return status or "it closed the connection", b""
        return "", await reader.read(_BODY_BYTES)
    finally:
        writer.transport.abort()


def _set_aside(body: bytes) -> int:
    """Return the number of steps given up, from the job service's health; 0 for other services."""
    try:
        return int(json.loads(body[body.index(b"{") :])["set_aside"])
    except (ValueError, KeyError, TypeError):
        return 0


# --- reach between containers on different nodes: the only test of the Swarm's UDP ports ----------


async def overlay_report(task: ProbeTask, node_id: str) -> tuple[OverlayReport, str]:
    """Exchange node ids with every other node's container, until all have answered or time is over.

    Return the report, and the address of the collector's container, "" if it was not met.
    """
    server = await start_server(_hello(task.token, node_id), task.port)
    wanted = {peer.id for peer in task.peers} - {node_id}
    reached: set[str] = set()
    interface = collector = ""
    deadline, error = time.monotonic() + _PATIENCE_S, ""
    while reached < wanted and time.monotonic() < deadline:
        try:
            addresses = await _addresses(task.overlay_name)
            error = ""
        except OSError:
            addresses, error = set(), f"the name tasks.{task.overlay_name} is not found"
        met = await asyncio.gather(*(_meet(address, task) for address in addresses))
        reached |= set(met) & wanted
        collector = dict(zip(met, addresses, strict=True)).get(task.collector, collector)
        to_peers = (address for address, who in zip(addresses, met, strict=True) if who in wanted)
        interface = next((_interface(_source_address(address)) for address in to_peers), interface)
        if reached < wanted:
            await asyncio.sleep(_PAUSE_S)
    found = await asyncio.gather(*(_opens(target) for target in task.closed))
    opened = tuple(target.what for target, opens in zip(task.closed, found, strict=True) if opens)
    del server  # It still answers: the event loop references it until this process ends.
    report = OverlayReport(
        node_id=node_id, reached=tuple(sorted(reached)), open=opened, interface=interface, error=error
    )
    return report, collector


async def _addresses(service: str) -> set[str]:
    found = await asyncio.get_running_loop().getaddrinfo(f"tasks.{service}", None, family=socket.AF_INET)
    return {str(entry[4][0]) for entry in found}


async def _opens(target: Target) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(target.host, int(target.port))
            writer.transport.abort()
            return True
    except (OSError, TimeoutError):
        return False


async def _meet(address: str, task: ProbeTask) -> str:
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(address, task.port)
            try:
                writer.write(f"{task.token}\n".encode())
                return (await reader.readline()).decode(errors="replace").strip()
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return ""


def _hello(token: str, node_id: str) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError):
            line = await asyncio.wait_for(reader.readline(), _CONNECT_S)
            word, _, verb = line.decode(errors="replace").strip().partition(" ")
            if word == token and verb == "report":
                await take_report(reader, writer)
            elif word == token:
                writer.write(f"{node_id}\n".encode())
        writer.close()

    return serve


# --- the interface that leads to a peer, from the kernel ------------------------------------------


def route_to(peer: Peer) -> PeerLink:
    """Return the interface that leads to a peer, with its nominal speed. Sends nothing."""
    address = _source_address(peer.address)
    interface = _interface(address)
    stats = psutil.net_if_stats().get(interface)
    folder = Path("/sys/class/net") / (interface or "none")
    return PeerLink(
        peer=peer.id,
        interface=interface,
        address=address,
        speed_mbit=stats.speed or None if stats else None,
        half_duplex=stats is not None and stats.duplex == psutil.NIC_DUPLEX_HALF,
        wireless=(folder / "wireless").exists() or (folder / "phy80211").exists(),
    )


def _source_address(peer: str) -> str:
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, _DISCARD_PORT))
        except OSError:
            return ""
        return probe.getsockname()[0]


def _interface(address: str) -> str:
    for name, found in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in found):
            return name
    return ""


if __name__ == "__main__":
    asyncio.run(run(os.environ))
