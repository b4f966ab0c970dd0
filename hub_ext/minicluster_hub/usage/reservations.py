"""Reservations, maintenance windows, drained nodes: made by admins, kept in the store, over by themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from minicluster.wire import MakeReservation, ReservationList
from minicluster.wire import Reservation as ClaimMessage
from minicluster_hub.jobs.records import NodeView, ReservationRecord
from minicluster_hub.scheduling.base import Snapshot
from minicluster_hub.scheduling.reservations.claims import LAPSE_S, Claim, ReservationKind, attended, named
from minicluster_hub.store import Store

SHOWN_S = 86_400.0
"""So long what is over stands in the list, with the reason."""


class ReservationRefused(Exception):
    """A claim that cannot be; `code` is for programs."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class ReservationBook:
    """The store has all; here is what it means now."""

    def __init__(self, store: Store, log: logging.Logger) -> None:
        self._store = store
        self._log = log

    def groups_of(self, owner: str) -> Sequence[str]:
        return self._store.owners.groups_of(owner)

    def claims(self) -> tuple[Claim, ...]:
        """Return those that are not over, for the scheduler."""
        return tuple(_claim(record) for record in self._store.claims.open())

    def attend(self, snapshot: Snapshot) -> None:
        """Keep which reservations are used, and end those that are over: at their end, or for want of use."""
        now = snapshot.now
        for claim in self.claims():
            lapses_at = claim.lapses_at()
            if claim.over(now):
                self._end(claim, "its time was over", now)
            elif lapses_at is not None and claim.due(now) and attended(claim, snapshot, self.groups_of):
                self._store.claims.used(claim.reservation_id, now)
            elif lapses_at is not None and lapses_at <= now:
                minutes = LAPSE_S / 60
                why = f"lapsed: nobody of {named(claim.holder)} used it within {minutes:g} minutes"
                self._end(claim, why, now)

    def make(self, ask: MakeReservation, nodes: Sequence[NodeView], by: str, now: float) -> ClaimMessage:
        """Keep a reservation or a maintenance window. Raises BookingRefused."""
        begins_at = now if ask.begins_at is None else max(ask.begins_at, now)
        _check(ask, nodes, begins_at)
        return self._make(
            ReservationRecord(
                0,
                ask.kind,
                ask.holder,
                tuple(dict.fromkeys(ask.nodes)),
                ask.slots,
                begins_at,
                ask.ends_at,
                ask.note,
                by,
                now,
            )
        )

    def drain(self, node: str, note: str, nodes: Sequence[NodeView], by: str, now: float) -> ClaimMessage:
        """Have a node take nothing new from now on; one that is drained stays so. Raises BookingRefused."""
        _check_nodes((node,), nodes)
        known = next(iter(self._drains(node)), None)
        if known is not None:
            return _message(known, now)
        record = ReservationRecord(0, ReservationKind.DRAIN, "", (node,), None, now, None, note, by, now)
        return self._make(record)

    def undrain(self, node: str, nodes: Sequence[NodeView], by: str, now: float) -> None:
        """Have a node take jobs again; one that is not drained is left alone. Raises BookingRefused."""
        drained = list(self._drains(node))
        if not drained:
            _check_nodes((node,), nodes)
        for record in drained:
            self._end(_claim(record), f"taken back by {by}", now)

    def take_back(self, reservation_id: int, by: str, now: float) -> bool:
        """End a claim; return whether there was one."""
        for claim in self.claims():
            if claim.reservation_id == reservation_id:
                self._end(claim, f"taken back by {by}", now)
                return True
        return False

    def shown(self, now: float) -> ReservationList:
        """Return all that people see of it."""
        coming = sorted(self._store.claims.open(), key=lambda one: (one.begins_at, one.id))
        over = self._store.claims.over_since(now - SHOWN_S)
        return ReservationList(claims=tuple(_message(record, now) for record in (*coming, *over)))

    def closed(self, now: float) -> dict[str, str]:
        """Return which nodes are reserved as a whole now, and why."""
        return {node: claim.told(now) for claim in self._closing(now) for node in claim.nodes}

    def open_nodes(self, nodes: Iterable[NodeView], now: float) -> tuple[NodeView, ...]:
        """Return the nodes with those that take nothing new now shown as down."""
        told = self.closed(now)
        closed = ((node, told.get(node.name, node.closed)) for node in nodes)
        return tuple(replace(node, up=False, closed=why) if why else node for node, why in closed)

    def _closing(self, now: float) -> Iterator[Claim]:
        """Yield what closes whole nodes to everybody now."""
        return (one for one in self.claims() if not one.holder and one.due(now) and not one.over(now))

    def _drains(self, node: str) -> Iterator[ReservationRecord]:
        return (
            one
            for one in self._store.claims.open()
            if one.kind == ReservationKind.DRAIN and one.nodes == (node,)
        )

    def _make(self, record: ReservationRecord) -> ClaimMessage:
        made = self._store.claims.make(record)
        told = _message(made, record.made_at)
        self._log.info("claim %s: %s, by %s", made.id, told.told, made.made_by)
        return told

    def _end(self, claim: Claim, why: str, now: float) -> None:
        self._store.claims.end(claim.reservation_id, why, now)
        self._log.info("claim %s: %s", claim.reservation_id, why)


def _check(ask: MakeReservation, nodes: Sequence[NodeView], begins_at: float) -> None:
    if ask.ends_at <= begins_at:
        raise ReservationRefused(
            "empty_period", "it ends before it begins, or has ended", "Give a later ends_at."
        )
    _check_nodes(ask.nodes, nodes)
    if ask.kind == "maintenance":
        if ask.holder or ask.slots is not None or not ask.nodes:
            message = "maintenance is of whole nodes, for nobody"
            raise ReservationRefused("bad_claim", message, "Give nodes, and neither holder nor slots.")
        return
    if ask.holder in ("", "group:"):
        raise ReservationRefused(
            "bad_claim", "a reservation is for somebody", "Give a holder: NAME or group:NAME."
        )
    there = sum(len(node.slot_kinds) for node in nodes if not ask.nodes or node.name in ask.nodes)
    if ask.slots is not None and ask.slots > there:
        where = "these nodes have" if ask.nodes else "the cluster has"
        raise ReservationRefused(
            "too_large", f"{ask.slots} slots are asked for; {where} {there}", "Ask for fewer."
        )


def _check_nodes(asked: Iterable[str], nodes: Sequence[NodeView]) -> None:
    there = [node.name for node in nodes]
    for name in asked:
        if name not in there:
            raise ReservationRefused(
                "no_such_node", f"there is no node {name}", f"There are: {', '.join(there)}."
            )


def _claim(record: ReservationRecord) -> Claim:
    return Claim(
        record.id,
        ReservationKind(record.kind),
        record.holder,
        record.nodes,
        record.slots,
        record.begins_at,
        record.ends_at,
        record.note,
        record.used_at is not None,
    )


def _message(record: ReservationRecord, now: float) -> ClaimMessage:
    return ClaimMessage(
        id=record.id,
        kind=ReservationKind(record.kind).value,
        holder=record.holder,
        nodes=record.nodes,
        slots=record.slots,
        begins_at=record.begins_at,
        ends_at=record.ends_at,
        note=record.note,
        by=record.made_by,
        over=record.over_why,
        told=_claim(record).told(now),
    )
