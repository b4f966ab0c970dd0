"""Reservations, maintenance windows and drained nodes: everybody sees them, admins make and cancel them."""

from __future__ import annotations

from minicluster.wire import DrainNode, MakeReservation, NodeList, Reservation, ReservationList
from minicluster_hub.support.notifier import NODES
from minicluster_hub.usage.reservations import ReservationRefused
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import Scope, route


class ReservationBase(UserHandler):
    """Base of handlers that tell the scheduler and the pages of a change."""

    def refuse_for_batch_queue(self) -> None:
        """Raise ApiError (409) if another queue owns the slots: only it can keep them free."""
        if queue := self.context.status_cache.engine.batch_queue:
            message = f"{queue.name} owns the slots of this cluster, so nothing can be reserved here"
            raise ApiError(409, "not_our_slots", message, f"Reserve or drain nodes with {queue.name}.")

    def changed(self) -> None:
        self.context.status_cache.changes.notify(NODES)
        self.context.reconciler.wake()


class ReservationsHandler(ReservationBase):
    @route(
        "api/reservations",
        "Reservations, maintenance windows and drained nodes",
        scope=Scope.READ,
        answer=ReservationList,
        formerly="api/claims",
    )
    def get(self) -> None:
        self.reply(self.context.reservations.shown(self.context.clock()))

    @route(
        "api/reservations",
        "Reserve slots, or announce maintenance of nodes",
        scope=Scope.ADMIN,
        body=MakeReservation,
        answer=Reservation,
        status=201,
        formerly="api/claims",
    )
    def post(self) -> None:
        self.refuse_for_batch_queue()
        context, ask = self.context, self.parse(MakeReservation)
        nodes = context.status_cache.node_views()
        made = context.reservations.make(ask, nodes, self.user.name, context.clock())
        self.changed()
        self.reply(made, 201)


class ReservationHandler(ReservationBase):
    @route(
        "api/reservations/{reservation_id}",
        "Cancel a reservation, a maintenance window or a drain",
        scope=Scope.ADMIN,
        status=204,
        formerly="api/claims/{reservation_id}",
    )
    def delete(self, reservation_id: str) -> None:
        context = self.context
        if not context.reservations.cancel(int(reservation_id), self.user.name, context.clock()):
            message = f"there is no reservation {reservation_id}"
            raise ApiError(404, "unknown_claim", message, "GET api/reservations lists them")
        self.changed()
        self.set_status(204)
        self.finish()


class DrainHandler(ReservationBase):
    @route(
        "api/nodes/{node}/drain",
        "Drain a node: it takes nothing new, and jobs that can be moved leave it",
        scope=Scope.ADMIN,
        body=DrainNode,
        answer=Reservation,
    )
    def post(self, node: str) -> None:
        self.refuse_for_batch_queue()
        context, ask = self.context, self.parse(DrainNode)
        nodes = context.status_cache.node_views()
        try:
            made = context.reservations.drain(node, ask.note, nodes, self.user.name, context.clock())
        except ReservationRefused as refused:
            raise ApiError(404, refused.code, refused.message, refused.hint) from refused
        self.changed()
        self.reply(made)


class UndrainHandler(ReservationBase):
    @route("api/nodes/{node}/undrain", "Let a node take jobs again", scope=Scope.ADMIN, answer=NodeList)
    def post(self, node: str) -> None:
        context = self.context
        nodes = context.status_cache.node_views()
        try:
            context.reservations.undrain(node, nodes, self.user.name, context.clock())
        except ReservationRefused as refused:
            raise ApiError(404, refused.code, refused.message, refused.hint) from refused
        self.changed()
        self.reply(context.status_cache.nodes())
