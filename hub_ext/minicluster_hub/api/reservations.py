"""Reservations, maintenance windows and drained nodes: everybody sees them, admins make and end them."""

from __future__ import annotations

from minicluster.wire import Claim, ClaimList, DrainNode, MakeClaim, NodeList
from minicluster_hub.support.notifier import NODES
from minicluster_hub.usage.reservations import BookingRefused, Bookings
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import Route, Scope


class ClaimsBase(UserHandler):
    """Base: a change is seen by the scheduler and the pages at once."""

    @property
    def bookings(self) -> Bookings:
        return self.context.reconciler.bookings

    def changed(self) -> None:
        self.context.board.changes.ring(NODES)
        self.context.reconciler.wake()


class ClaimsHandler(ClaimsBase):
    """All of them, and new ones."""

    def get(self) -> None:
        self.reply(self.bookings.shown(self.context.clock()))

    def post(self) -> None:
        ask, context = self.parse(MakeClaim), self.context
        try:
            made = self.bookings.make(ask, context.board.node_views(), self.user.name, context.clock())
        except BookingRefused as refused:
            raise ApiError(422, refused.code, refused.message, refused.hint) from refused
        self.changed()
        self.reply(made, 201)


class ClaimHandler(ClaimsBase):
    """One of them, taken back."""

    def delete(self, claim_id: str) -> None:
        if not self.bookings.take_back(int(claim_id), self.user.name, self.context.clock()):
            raise ApiError(404, "unknown_claim", f"there is no claim {claim_id}", "GET api/claims lists them")
        self.changed()
        self.set_status(204)
        self.finish()


class DrainHandler(ClaimsBase):
    """Has a node take nothing new."""

    def post(self, node: str) -> None:
        ask, context = self.parse(DrainNode), self.context
        try:
            made = self.bookings.drain(
                node, ask.note, context.board.node_views(), self.user.name, context.clock()
            )
        except BookingRefused as refused:
            raise ApiError(404, refused.code, refused.message, refused.hint) from refused
        self.changed()
        self.reply(made)


class UndrainHandler(ClaimsBase):
    """Has a node take jobs again."""

    def post(self, node: str) -> None:
        context = self.context
        try:
            self.bookings.undrain(node, context.board.node_views(), self.user.name, context.clock())
        except BookingRefused as refused:
            raise ApiError(404, refused.code, refused.message, refused.hint) from refused
        self.changed()
        self.reply(context.board.nodes())


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "api/claims",
        ClaimsHandler,
        "Reservations, maintenance windows and drained nodes",
        scope=Scope.READ,
        answer=ClaimList,
    ),
    Route(
        "POST",
        "api/claims",
        ClaimsHandler,
        "Reserve slots, or announce maintenance of nodes",
        scope=Scope.ADMIN,
        body=MakeClaim,
        answer=Claim,
        status=201,
    ),
    Route(
        "DELETE",
        "api/claims/{claim_id}",
        ClaimHandler,
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
        answer=Claim,
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
