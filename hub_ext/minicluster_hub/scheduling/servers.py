"""Chooses the node and the GPUs of a notebook server, and until when it holds them; or refuses it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from minicluster.wire import PlaceServer
from minicluster_hub.jobs.records import Lease, NodeView, ServerRecord
from minicluster_hub.jobs.slot_numbers import HALF, size, slot_of, total
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, common
from minicluster_hub.scheduling.holders import gpus, held_by, server_holder
from minicluster_hub.scheduling.limits import YOURS, Quota, over_hours


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """max_gpus: of one notebook server; 0: none. max_gpu_s: how long a server may hold GPUs."""

    max_gpus: float = 0
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
    """The obtainable GPUs of a node. free: its slots. warm: the leases of warm gangs, whole slots first.

    servers: how many notebook servers are on the node.
    """

    node: str
    free: FreeSlots
    warm: tuple[Lease, ...]
    servers: int

    def first(self, gpus: float) -> tuple[int, ...]:
        """Return so many free slots, or half of one; () if there are not enough."""
        replicas, each = (1, gpus) if gpus == HALF else (int(gpus), 1)
        return (
            self.free.first(self.node, replicas, each) if self.free.room(self.node, each) >= replicas else ()
        )

    def with_warm(self, gpus: float) -> tuple[_Stock, frozenset[int]]:
        """Return the stock after the end of as many warm tasks as needed, and these tasks."""
        stock, ended = replace(self, free=self.free.copy()), set[int]()
        for lease in self.warm:
            if not gpus or stock.first(gpus):
                break
            stock.free.add(((self.node, (lease.slot,)),))
            ended.add(lease.task_id or 0)
        return stock, frozenset(ended)


def place_server(
    owner: str, ask: PlaceServer, ledger: Ledger, limits: ServerLimits, now: float
) -> Placed | MakeRoom:
    """Return a place, or the warm tasks that have to end for one. Raises ServerRefused."""
    if ask.gpus > limits.max_gpus:
        raise _not_allowed(limits)
    candidates = _candidates(owner, ask, ledger)
    stocks = [_stock(node, ledger).with_warm(ask.gpus) for node in candidates]
    fitting = [(stock, ended) for stock, ended in stocks if not ask.gpus or stock.first(ask.gpus)]
    if not fitting:
        raise _no_free_gpu(ask, candidates, ledger, now)

    def order(found: tuple[_Stock, frozenset[int]]) -> tuple[bool, float, int, str]:
        stock, ended = found
        divides = ask.gpus == HALF and slot_of(stock.first(HALF)[0]) in stock.free.on(stock.node)
        return bool(ended), divides, stock.servers, stock.node

    best, ended = min(fitting, key=order)
    if ended:
        return MakeRoom(best.node, ended)
    until = now + min(ask.gpu_s or limits.max_gpu_s, limits.max_gpu_s) if ask.gpus else None
    return Placed(best.node, best.first(ask.gpus) if ask.gpus else (), until)


def check_quota(
    ask: PlaceServer, quota: Quota, held_slots: float, used_hours: float, whose: str = YOURS
) -> None:
    """Raise ServerRefused if the owner's quota does not allow the requested GPUs.

    held_slots: that the owner holds now. used_hours: GPU-hours in the last 30 days.
    """
    why = ""
    if quota.slots is not None and held_slots + ask.gpus > quota.slots:
        why = f"over {whose} of {quota.slots:g} slots at once: {held_slots:g} in use"
    elif quota.gpu_hours is not None and used_hours >= quota.gpu_hours:
        why = over_hours(quota, used_hours)
    if ask.gpus and why:
        raise ServerRefused("over_quota", why, "Start without a GPU, or when your jobs have ended.")


def check_same(record: ServerRecord, ask: PlaceServer) -> None:
    """Raise ServerRefused if a server that has a place requests a different one."""
    slots = record.slots if record.reclaimed_at is None else ()
    if ask.gpus == total(slots) and ask.node in (None, record.node):
        return
    has = f"node {record.node} with {gpus(total(slots))}"
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
    gpus_there = [slot for slot, kind in enumerate(node.slot_kinds) if kind == "gpu"]
    slots = [slot for slot in gpus_there if (node.name, slot) not in ledger.excluded]
    free = FreeSlots({node.name: slots}, [node.name] if node.no_gpu_share else ())
    held = [lease for lease in ledger.leases if lease.node == node.name and slot_of(lease.slot) in slots]
    for lease in held:
        free.remove(common(((node.name, (lease.slot,)),), free))
    warm = sorted((lease for lease in held if lease.warm and lease.task_id), key=lambda lease: lease.slot)
    return _Stock(node.name, free, tuple(warm), sum(server.node == node.name for server in ledger.servers))


def _not_allowed(limits: ServerLimits) -> ServerRefused:
    most = f"more than {gpus(limits.max_gpus)}" if limits.max_gpus else "GPUs"
    message = f"this cluster does not give {most} to a notebook server"
    return ServerRefused("gpu_not_allowed", message, "Use GPUs with %%distribute, or ask your administrator.")


def _no_free_gpu(
    ask: PlaceServer, candidates: Sequence[NodeView], ledger: Ledger, now: float
) -> ServerRefused:
    where = f"{candidates[0].name} does not have" if len(candidates) == 1 else "no node has"
    if ask.gpus == HALF and all(node.no_gpu_share for node in candidates):
        why = "; ".join(f"{node.name}: {node.no_gpu_share}" for node in candidates)
        return ServerRefused(
            "no_gpu_share", f"no node shares its GPUs ({why})", "Ask for a whole GPU or none."
        )
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
    holders: defaultdict[str, float] = defaultdict(float)
    for lease in ledger.leases:
        if lease.node in names and (lease.node, slot_of(lease.slot)) in slots and not lease.warm:
            holders[_holder(lease, servers, now)] += size(lease.slot)
    return [held_by(count, holder) for holder, count in holders.items()]


def _holder(lease: Lease, servers: Mapping[int, ServerRecord], now: float) -> str:
    server = servers.get(lease.server_id or 0)
    if server is None:
        return f"job {lease.job_id} of {lease.owner}"
    return server_holder(server, now)
