"""Reservations, maintenance windows and drained nodes. Admins make them, and they end by themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from minicluster.wire import MakeReservation, Reservation, ReservationList
from minicluster_hub.jobs.records import NodeView, ReservationRecord
from minicluster_hub.scheduling.base import Snapshot
from minicluster_hub.scheduling.reservations.reservation import (
    LAPSE_S,
    ReservationKind,
    ReservationView,
    in_use,
    named,
)
from minicluster_hub.store import Store

SHOWN_S = 86_400.0
"""Seconds for which the list shows ended reservations."""


class ReservationRefused(Exception):
    """A reservation is not possible. code: the error's code."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


class ReservationBook:
    """Makes, ends and shows the reservations of the store."""

    def __init__(self, store: Store, log: logging.Logger) -> None:
        self._store = store
        self._log = log

    def groups_of(self, owner: str) -> Sequence[str]:
        return self._store.owners.groups_of(owner)

    def current(self) -> tuple[ReservationView, ...]:
        """Return the reservations that are not over, for the scheduler."""
        return tuple(_view(record) for record in self._store.reservations.open())

    def update_and_expire(self, snapshot: Snapshot) -> None:
        """Store which reservations are used. End those whose time is over, and those that lapse unused."""
        now = snapshot.now
        for one in self.current():
            lapses_at = one.lapses_at()
            if one.over(now):
                self._end(one, "its time was over", now)
            elif lapses_at is not None and one.begun(now) and in_use(one, snapshot, self.groups_of):
                self._store.reservations.used(one.reservation_id, now)
            elif lapses_at is not None and lapses_at <= now:
                minutes = LAPSE_S / 60
                why = f"lapsed: {named(one.holder)} did not use it within {minutes:g} minutes"
                self._end(one, why, now)

    def make(self, ask: MakeReservation, nodes: Sequence[NodeView], by: str, now: float) -> Reservation:
        """Make a reservation or a maintenance window. Raises ReservationRefused."""
        begins_at = now if ask.begins_at is None else max(ask.begins_at, now)
        _check(ask, nodes, begins_at)
        where, until = tuple(dict.fromkeys(ask.nodes)), ask.ends_at
        return self._make(
            ReservationRecord(0, ask.kind, ask.holder, where, ask.slots, begins_at, until, ask.note, by, now)
        )

    def drain(self, node: str, note: str, nodes: Sequence[NodeView], by: str, now: float) -> Reservation:
        """Drain a node, if it is not drained: it gets no new jobs or servers. Raises ReservationRefused."""
        _check_nodes((node,), nodes)
        if drained := next(self._drains(node), None):
            return _message(drained, now)
        record = ReservationRecord(0, ReservationKind.DRAIN, "", (node,), None, now, None, note, by, now)
        return self._make(record)

    def undrain(self, node: str, nodes: Sequence[NodeView], by: str, now: float) -> None:
        """Let a node get jobs again, if it is drained. Raises ReservationRefused."""
        drained = list(self._drains(node))
        if not drained:
            _check_nodes((node,), nodes)
        for record in drained:
            self._end(_view(record), f"cancelled by {by}", now)

    def cancel(self, reservation_id: int, by: str, now: float) -> bool:
        """Cancel a reservation; return whether there was one."""
        for one in self.current():
            if one.reservation_id == reservation_id:
                self._end(one, f"cancelled by {by}", now)
                return True
        return False

    def shown(self, now: float) -> ReservationList:
        """Return the list that users see."""
        coming = sorted(self._store.reservations.open(), key=lambda one: (one.begins_at, one.id))
        over = self._store.reservations.closed_since(now - SHOWN_S)
        return ReservationList(claims=tuple(_message(record, now) for record in (*coming, *over)))

    def closed(self, now: float) -> dict[str, str]:
        """Return the nodes that get no new jobs or servers now, and the reasons."""
        closing = [one for one in self.current() if not one.holder and one.begun(now) and not one.over(now)]
        return {node: one.describe(now) for one in closing for node in one.nodes}

    def open_nodes(self, nodes: Iterable[NodeView], now: float) -> tuple[NodeView, ...]:
        """Return the nodes. Those that get no new jobs or servers now count as down."""
        closed = self.closed(now)
        found = ((node, closed.get(node.name, node.closed)) for node in nodes)
        return tuple(replace(node, up=False, closed=why) if why else node for node, why in found)

    def _drains(self, node: str) -> Iterator[ReservationRecord]:
        drains = (one for one in self._store.reservations.open() if one.kind == ReservationKind.DRAIN)
        return (one for one in drains if one.nodes == (node,))

    def _make(self, record: ReservationRecord) -> Reservation:
        made = self._store.reservations.make(record)
        reservation = _message(made, record.made_at)
        self._log.info("reservation %s: %s, by %s", made.id, reservation.told, made.made_by)
        return reservation

    def _end(self, one: ReservationView, why: str, now: float) -> None:
        self._store.reservations.close(one.reservation_id, why, now)
        self._log.info("reservation %s: %s", one.reservation_id, why)


def _check(ask: MakeReservation, nodes: Sequence[NodeView], begins_at: float) -> None:
    if ask.ends_at <= begins_at:
        raise ReservationRefused(
            "empty_period", "it would end before it begins, or in the past", "Give a later ends_at."
        )
    _check_nodes(ask.nodes, nodes)
    if ask.kind == "maintenance":
        if ask.holder or ask.slots is not None or not ask.nodes:
            message = "maintenance has whole nodes and no holder"
            raise ReservationRefused("bad_claim", message, "Give nodes, and neither holder nor slots.")
        return
    if ask.holder in ("", "group:"):
        raise ReservationRefused(
            "bad_claim", "a reservation needs a holder", "Give a holder: NAME or group:NAME."
        )
    there = sum(len(node.slot_kinds) for node in nodes if not ask.nodes or node.name in ask.nodes)
    if ask.slots is not None and ask.slots > there:
        where = "these nodes have" if ask.nodes else "the cluster has"
        raise ReservationRefused(
            "too_large", f"{ask.slots} slots are requested; {where} {there}", "Request fewer slots."
        )


def _check_nodes(asked: Iterable[str], nodes: Sequence[NodeView]) -> None:
    there = [node.name for node in nodes]
    for name in asked:
        if name not in there:
            raise ReservationRefused(
                "no_such_node", f"there is no node {name}", f"There are: {', '.join(there)}."
            )


def _view(record: ReservationRecord) -> ReservationView:
    return ReservationView(
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


def _message(record: ReservationRecord, now: float) -> Reservation:
    return Reservation(
        id=record.id,
        kind=ReservationKind(record.kind).value,
        holder=record.holder,
        nodes=record.nodes,
        slots=record.slots,
        begins_at=record.begins_at,
        ends_at=record.ends_at,
        note=record.note,
        by=record.made_by,
        over=record.closed_reason,
        told=_view(record).describe(now),
    )
