"""What a user wants to be told of by e-mail or webhook."""

from __future__ import annotations

from minicluster.wire import NoticeReport, NoticeWishes
from minicluster_hub.handlers.auth import UserHandler
from minicluster_hub.handlers.errors import ApiError
from minicluster_hub.handlers.route import Route, Scope
from minicluster_hub.notices.errors import AddressRefused


class NoticesHandler(UserHandler):
    """One's own wishes; nobody sees others', for a webhook's URL is often a secret."""

    def get(self) -> None:
        post = self.context.post
        wishes, trouble = self.context.store.notices.wishes(self.user.name)
        emails = bool(post.emails.host)
        self.reply(NoticeReport(wishes=wishes, hosts=post.webhooks.hosts, emails=emails, trouble=trouble))

    def put(self) -> None:
        wishes = self.parse(NoticeWishes)
        try:
            if wishes.webhook is not None:
                self.context.post.webhooks.check(wishes.webhook)
            if wishes.email is not None:
                self.context.post.emails.check(wishes.email)
        except AddressRefused as refused:
            raise ApiError(422, "address_refused", f"{refused}", refused.hint) from refused
        self.context.store.notices.wish(self.user.name, wishes)
        self.get()


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "api/notices/me",
        NoticesHandler,
        "What you are told of by e-mail or webhook, and what may be",
        scope=Scope.READ,
        answer=NoticeReport,
    ),
    Route(
        "PUT",
        "api/notices/me",
        NoticesHandler,
        "Be told of other things, or elsewhere; without a webhook and an e-mail address: of nothing",
        scope=Scope.SUBMIT,
        body=NoticeWishes,
        answer=NoticeReport,
    ),
)
