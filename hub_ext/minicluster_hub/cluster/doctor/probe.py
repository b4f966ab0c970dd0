"""What runs for a few seconds on every node: it looks at its node, prints one line, and serves its peers.

It needs no Docker socket and no rights: host network (links, clocks, doors), and read-only the host's
/usr/bin, to ask nvidia-ctk for its version.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from minicluster_hub.cluster.doctor.meter import Meter, Unmeasured, in_words, partners
from minicluster_hub.cluster.doctor.overlay import overlay_report
from minicluster_hub.cluster.doctor.report import (
    REPORT_PREFIX,
    Answer,
    Door,
    Gpus,
    Link,
    OverlayReport,
    Peer,
    Report,
    Task,
)

TASK_ENV, NODE_ENV = "MINICLUSTER_PROBE", "MINICLUSTER_NODE_ID"
HOST_BIN = "/host/bin"
_BODY_BYTES = 4096
_ARRIVAL_S, _BUSY_S, _DOOR_S, _LIFE_S = 5.0, 8.0, 5.0, 60.0

_DISCARD_PORT = 9


async def examine_node(task: Task, node_id: str, meter: Meter) -> Report:
    """Look at everything at once; the transfers wait for each other by themselves."""
    measured = partners([peer.id for peer in task.peers], node_id)
    others = [peer for peer in task.peers if peer.id != node_id]
    links, answers, gpus = await asyncio.gather(
        asyncio.gather(*(_link(meter, peer, measure=peer.id in measured) for peer in others)),
        asyncio.gather(*(_try_door(door) for door in task.doors if _elsewhere(door, task, node_id))),
        asyncio.to_thread(_gpus),
    )
    disk, shm = os.statvfs("/"), os.statvfs("/dev/shm")  # noqa: S108
    return Report(
        node_id=node_id,
        links=tuple(links),
        answers=tuple(answers),
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
        disk_total_bytes=disk.f_blocks * disk.f_frsize,
        shm_bytes=shm.f_blocks * shm.f_frsize,
        gpus=gpus,
    )


async def run(environ: Mapping[str, str]) -> None:
    """Report, then serve the peers until the service is removed."""
    task, node_id = Task.model_validate_json(environ[TASK_ENV]), environ[NODE_ENV]
    report: Report | OverlayReport
    if task.overlay_name:
        report = await overlay_report(task, node_id)
    else:
        meter = Meter(task.token, task.port)
        try:
            await meter.open()
        except OSError as error:
            print(f"port {task.port} cannot be listened on: {error.strerror}", file=sys.stderr)  # noqa: T201
        report = await examine_node(task, node_id, meter)
    print(REPORT_PREFIX + report.model_dump_json(), flush=True)  # noqa: T201
    await asyncio.sleep(_LIFE_S)


async def _link(meter: Meter, peer: Peer, *, measure: bool) -> Link:
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
        words = in_words(error) if isinstance(error, OSError) else str(error)
        return link.model_copy(update={"error": words or "the connection stalled"})


async def _try_door(door: Door) -> Answer:
    words, body = "", b""
    try:
        async with asyncio.timeout(_DOOR_S):
            words, body = await _ask(door.target)
    except TimeoutError:
        words = f"no answer within {_DOOR_S:.0f} s"
    except OSError as error:
        words = in_words(error)
    return Answer(door=door, ok=not words, words=words, set_aside=_set_aside(body))


async def _ask(target: str) -> tuple[str, bytes]:
    """Connect, and ask a URL for a good answer; return what is wrong, in words, and how the answer begins.

    Whose certificate it is does not matter here: nothing secret is sent, and what comes back is a status.
    """
    scheme, _, rest = target.partition("://")
    place, _, path = rest.partition("/")
    host, _, port = place.rpartition(":")
    tls = ssl._create_unverified_context() if scheme == "https" else None  # noqa: S323
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=tls)
    try:
        if scheme == "tcp":
            return "", b""
        writer.write(f"GET /{path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n".encode())
        status = (await reader.readline()).decode(errors="replace").strip().partition(" ")[2]
        if not status.startswith("2"):
            return status or "it closed the connection", b""
        return "", await reader.read(_BODY_BYTES)
    finally:
        writer.transport.abort()


def _set_aside(body: bytes) -> int:
    """Return what the job service's health says about work that fails again and again; 0 for others."""
    try:
        return int(json.loads(body[body.index(b"{") :])["set_aside"])
    except (ValueError, KeyError, TypeError):
        return 0


def _elsewhere(door: Door, task: Task, node_id: str) -> bool:
    """The Swarm's own ports are tried from the other nodes only."""
    own = next((peer.address for peer in task.peers if peer.id == node_id), "")
    return not door.target.startswith(f"tcp://{own}:")


def _gpus() -> Gpus:
    of_driver = Path("/proc/driver/nvidia/gpus")
    return Gpus(
        of_driver=len(list(of_driver.iterdir())) if of_driver.is_dir() else 0,
        in_container=len([path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]),
        toolkit=_toolkit_version(),
    )


def _toolkit_version() -> str:
    program = shutil.which("nvidia-ctk", path=HOST_BIN)
    if program is None:
        return ""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.partition("version")[2].strip().partition("\n")[0]


# Which interface leads to a peer, asked of the kernel, and what that interface is.


def route_to(peer: Peer) -> Link:
    """Return the interface on the way to a peer with its nominal speed; nothing is sent."""
    interface = _interface(_source_address(peer.address))
    stats = psutil.net_if_stats().get(interface)
    folder = Path("/sys/class/net") / (interface or "none")
    return Link(
        peer=peer.id,
        interface=interface,
        speed_mbit=stats.speed or None if stats else None,
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
    for name, held in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in held):
            return name
    return ""


if __name__ == "__main__":
    asyncio.run(run(os.environ))
