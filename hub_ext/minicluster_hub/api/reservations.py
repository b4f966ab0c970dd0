"""Reservations, maintenance windows and drained nodes: everybody sees them, admins make and end them."""

from __future__ import annotations

from minicluster.wire import DrainNode, MakeReservation, NodeList, Reservation, ReservationList
from minicluster_hub.support.notifier import NODES
from minicluster_hub.usage.reservations import ReservationBook, ReservationRefused
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import Route, Scope


class ClaimsBase(UserHandler):
    """Base: a change is seen by the scheduler and the pages at once."""

    @property
    def reservations(self) -> ReservationBook:
        return self.context.reservations

    def changed(self) -> None:
        self.context.status_cache.changes.notify(NODES)
        self.context.reconciler.wake()


class ReservationsHandler(ClaimsBase):
    """All of them, and new ones."""

    def get(self) -> None:
        self.reply(self.reservations.shown(self.context.clock()))

    def post(self) -> None:
        ask, context = self.parse(MakeReservation), self.context
        try:
            made = self.reservations.make(
                ask, context.status_cache.node_views(), self.user.name, context.clock()
            )
        except ReservationRefused as refused:
            raise ApiError(422, refused.code, refused.message, refused.hint) from refused
        self.changed()
        self.reply(made, 201)


class ReservationHandler(ClaimsBase):
    """One of them, taken back."""

    def delete(self, reservation_id: str) -> None:
        if not self.reservations.take_back(int(reservation_id), self.user.name, self.context.clock()):
            raise ApiError(
                404, "unknown_claim", f"there is no claim {reservation_id}", "GET api/claims lists them"
            )
        self.changed()
        self.set_status(204)
        self.finish()


class DrainHandler(ClaimsBase):
    """Has a node take nothing new."""

    def post(self, node: str) -> None:
        ask, context = self.parse(DrainNode), self.context
        try:
            made = self.reservations.drain(
                node, ask.note, context.status_cache.node_views(), self.user.name, context.clock()
            )
        except ReservationRefused as refused:
            raise ApiError(404, refused.code, refused.message, refused.hint) from refused
        self.changed()
        self.reply(made)


class UndrainHandler(ClaimsBase):
    """Has a node take jobs again."""

    def post(self, node: str) -> None:
        context = self.context
        try:
            self.reservations.undrain(
                node, context.status_cache.node_views(), self.user.name, context.clock()
            )
        except ReservationRefused as refused:
            raise ApiError(404, refused.code, refused.message, refused.hint) from refused
        self.changed()
        self.reply(context.status_cache.nodes())


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "api/claims",
        ReservationsHandler,
        "Reservations, maintenance windows and drained nodes",
        scope=Scope.READ,
        answer=ReservationList,
    ),
    Route(
        "POST",
        "api/claims",
        ReservationsHandler,
        "Reserve slots, or announce maintenance of nodes",
        scope=Scope.ADMIN,
        body=MakeReservation,
        answer=Reservation,
        status=201,
    ),
    Route(
        "DELETE",
        "api/claims/{reservation_id}",
        ReservationHandler,
        "Take a reservation, a window or a drain back",
        scope=Scope.ADMIN,
        status=204,
    ),
    Route(
        "POST",
        "api/nodes/{node}/drain",
        DrainHandler,
        "Let a node take nothing new; jobs that can be moved leave it",
        scope=Scope.ADMIN,
        body=DrainNode,
        answer=Reservation,
    ),
    Route(
        "POST",
        "api/nodes/{node}/undrain",
        UndrainHandler,
        "Let a node take jobs again",
        scope=Scope.ADMIN,
        answer=NodeList,
    ),
)
