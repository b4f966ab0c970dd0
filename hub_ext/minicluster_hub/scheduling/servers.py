"""Chooses the node and the GPUs of a notebook server, and until when it holds them; or refuses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minicluster.wire import PlaceServer
from minicluster_hub.jobs.records import Lease, NodeView, ServerRecord
from minicluster_hub.scheduling.holders import gpus, held_by, server_holder
from minicluster_hub.scheduling.limits import YOURS, Quota, over_hours


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """max_gpus: of one notebook server; 0: none. max_gpu_s: how long a server may hold GPUs."""

    max_gpus: int = 0
    max_gpu_s: float = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Ledger:
    """The input of the choice. home: the node with the owner's home; None: there is no home yet.

    excluded: free slots that this server may not have. excluded_reason: why.
    """

    nodes: Sequence[NodeView]
    leases: Sequence[Lease]
    servers: Sequence[ServerRecord]
    home: str | None
    excluded: frozenset[tuple[str, int]] = frozenset()
    excluded_reason: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """The server gets these slots of this node. until: when it has to release them."""

    node: str
    slots: tuple[int, ...]
    until: float | None


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """These tasks of warm gangs hold slots that the server needs: end them, then ask again."""

    node: str
    task_ids: frozenset[int]


class ServerRefused(Exception):
    """A notebook server is refused. code: for programs."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class _Stock:
    """The obtainable GPUs of a node. free: slots. warm: slots of warm gangs, with their tasks.

    servers: how many notebook servers are on the node.
    """

    node: str
    free: tuple[int, ...]
    warm: Mapping[int, int]
    servers: int

    @property
    def obtainable(self) -> int:
        return len(self.free) + len(self.warm)


def place_server(
    owner: str, ask: PlaceServer, ledger: Ledger, limits: ServerLimits, now: float
) -> Placed | MakeRoom:
    """Return a place, or the warm tasks that have to end for one. Raises ServerRefused."""
    if ask.gpus > limits.max_gpus:
        raise _not_allowed(limits)
    candidates = _candidates(owner, ask, ledger)
    stocks = [_stock(node, ledger) for node in candidates]
    fitting = [stock for stock in stocks if stock.obtainable >= ask.gpus]
    if not fitting:
        raise _no_free_gpu(ask, candidates, ledger, now)
    best = min(fitting, key=lambda stock: (len(stock.free) < ask.gpus, stock.servers, stock.node))
    missing = ask.gpus - len(best.free)
    if missing > 0:
        return MakeRoom(best.node, frozenset([best.warm[slot] for slot in sorted(best.warm)[:missing]]))
    until = now + min(ask.gpu_s or limits.max_gpu_s, limits.max_gpu_s) if ask.gpus else None
    return Placed(best.node, best.free[: ask.gpus], until)


def check_quota(
    ask: PlaceServer, quota: Quota, held_slots: int, used_hours: float, whose: str = YOURS
) -> None:
    """Raise ServerRefused if the owner's quota does not allow the requested GPUs.

    held_slots: that the owner holds now. used_hours: GPU-hours in the last 30 days.
    """
    why = ""
    if quota.slots is not None and held_slots + ask.gpus > quota.slots:
        why = f"over {whose} of {quota.slots:g} slots at once: {held_slots} in use"
    elif quota.gpu_hours is not None and used_hours >= quota.gpu_hours:
        why = over_hours(quota, used_hours)
    if ask.gpus and why:
        raise ServerRefused("over_quota", why, "Start without a GPU, or when your jobs have ended.")


def check_same(record: ServerRecord, ask: PlaceServer) -> None:
    """Raise ServerRefused if a server that has a place requests a different one."""
    slots = record.slots if record.reclaimed_at is None else ()
    if ask.gpus == len(slots) and ask.node in (None, record.node):
        return
    has = f"node {record.node} with {gpus(len(slots))}"
    message = f"the notebook server {record.name!r} of {record.owner} has a place already: {has}"
    raise ServerRefused("place_differs", message, "Stop the server and delete its place first.")


def _candidates(owner: str, ask: PlaceServer, ledger: Ledger) -> list[NodeView]:
    """Return the nodes that the server may be on. Raises ServerRefused."""
    nodes = {node.name: node for node in ledger.nodes}
    if ask.node is not None and ask.node not in nodes:
        there = ", ".join(sorted(nodes)) or "none"
        raise ServerRefused("no_such_node", f"there is no node {ask.node}", f"There are: {there}.")
    home = None if ask.shared_home else ledger.home
    given_up = ask.new_home and not (home in nodes and nodes[home].up)
    if home is not None and not given_up:
        return [_home_node(owner, home, ask, nodes)]
    if ask.node is not None:
        if not nodes[ask.node].up:
            why = nodes[ask.node].closed or f"node {ask.node} is down"
            raise ServerRefused("node_down", why, "Choose another node, or none.")
        return [nodes[ask.node]]
    up = [node for node in ledger.nodes if node.up]
    if not up:
        raise ServerRefused("node_down", "no node of this cluster is up", "Tell your administrator.")
    return up


def _home_node(owner: str, home: str, ask: PlaceServer, nodes: Mapping[str, NodeView]) -> NodeView:
    if ask.node not in (None, home):
        message = f"the home of {owner} is on node {home}, so a server on {ask.node} would not have it"
        raise ServerRefused("home_elsewhere", message, f"Choose {home}, or no node at all.")
    if home not in nodes or not nodes[home].up:
        closed = nodes[home].closed if home in nodes else ""
        state = "is down" if home in nodes else "is not in this cluster any more"
        message = f"the home of {owner} is on node {home}, which {state}"
        message = f"the home of {owner} is on node {home}, and {closed}" if closed else message
        hint = (
            "Wait until it is back, tell your administrator, or start with a new, empty home on another node."
        )
        raise ServerRefused("home_node_down", message, hint)
    return nodes[home]


def _stock(node: NodeView, ledger: Ledger) -> _Stock:
    held = {lease.slot: lease for lease in ledger.leases if lease.node == node.name}
    gpus_there = [slot for slot, kind in enumerate(node.slot_kinds) if kind == "gpu"]
    slots = [slot for slot in gpus_there if (node.name, slot) not in ledger.excluded]
    warm = {
        slot: lease.task_id
        for slot in slots
        if (lease := held.get(slot)) is not None and lease.warm and lease.task_id is not None
    }
    free = tuple(slot for slot in slots if slot not in held)
    return _Stock(node.name, free, warm, sum(server.node == node.name for server in ledger.servers))


def _not_allowed(limits: ServerLimits) -> ServerRefused:
    most = f"more than {limits.max_gpus} of them" if limits.max_gpus else "GPUs"
    message = f"this cluster does not give {most} to a notebook server"
    return ServerRefused("gpu_not_allowed", message, "Use GPUs with %%distribute, or ask your administrator.")


def _no_free_gpu(
    ask: PlaceServer, candidates: Sequence[NodeView], ledger: Ledger, now: float
) -> ServerRefused:
    where = f"{candidates[0].name} does not have" if len(candidates) == 1 else "no node has"
    have = max(sum(kind == "gpu" for kind in node.slot_kinds) for node in candidates)
    if have < ask.gpus:
        message = f"{where} {gpus(ask.gpus)}; {'it has' if len(candidates) == 1 else 'the most is'} {have}"
        return ServerRefused("no_free_gpu", message, "Ask for fewer GPUs.")
    names = {node.name for node in candidates}
    held = "; ".join((*_holders(names, ledger, now), *filter(None, [ledger.excluded_reason])))
    message = f"{where} {gpus(ask.gpus)} free: {held}"
    return ServerRefused("no_free_gpu", message, "Try again later, or start without a GPU.")


def _holders(names: set[str], ledger: Ledger, now: float) -> list[str]:
    """Return a sentence for each holder of GPUs of these nodes, with the end if it is known."""
    slots = {
        (node.name, slot)
        for node in ledger.nodes
        for slot, kind in enumerate(node.slot_kinds)
        if kind == "gpu"
    }
    servers = {server.id: server for server in ledger.servers}
    holders = Counter(
        _holder(lease, servers, now)
        for lease in ledger.leases
        if lease.node in names and (lease.node, lease.slot) in slots and not lease.warm
    )
    return [held_by(count, holder) for holder, count in holders.items()]


def _holder(lease: Lease, servers: Mapping[int, ServerRecord], now: float) -> str:
    server = servers.get(lease.server_id or 0)
    if server is None:
        return f"job {lease.job_id} of {lease.owner}"
    return server_holder(server, now)
