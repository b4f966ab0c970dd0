"""A user's notices by e-mail or webhook: which events, and where to."""

from __future__ import annotations

from math import ceil

from minicluster.wire import EmailCode, NoticeReport, NoticeSettings
from minicluster_hub.notices.errors import NotSent, TooManyMails
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError, too_many
from minicluster_hub.web.route import Scope, route


class NoticesHandler(UserHandler):
    """The user's own settings. Nobody else sees them, since a webhook's URL is often a secret."""

    @route(
        "api/notices/me",
        "Your notices by e-mail or webhook, and the allowed hosts",
        scope=Scope.READ,
        answer=NoticeReport,
    )
    def get(self) -> None:
        sender, notices, owner = self.context.notice_sender, self.context.store.notices, self.user.name
        settings, trouble = notices.settings(owner)
        self.reply(
            NoticeReport(
                wishes=settings,
                hosts=sender.webhooks.hosts,
                emails=bool(sender.emails.host),
                email_confirmed=bool(settings.email) and notices.is_confirmed(owner, settings.email or ""),
                trouble=trouble,
            )
        )

    @route(
        "api/notices/me",
        "Choose events and addresses; a new e-mail address gets a code. Without events, nothing is sent",
        scope=Scope.SUBMIT,
        body=NoticeSettings,
        answer=NoticeReport,
    )
    async def put(self) -> None:
        settings = self.parse(NoticeSettings)
        sender, notices = self.context.notice_sender, self.context.store.notices
        if settings.webhook is not None:
            sender.webhooks.check(settings.webhook)
        if settings.email is not None:
            sender.emails.check(settings.email)
        if settings.email and not notices.is_confirmed(self.user.name, settings.email):
            await self._send_code(settings.email)
        notices.save_settings(self.user.name, settings)
        self.get()

    async def _send_code(self, address: str) -> None:
        """Send the code that confirms an address. Raises ApiError (429, 503)."""
        owner = self.user.name
        try:
            code = await self.context.notice_sender.send_code(owner, address)
        except TooManyMails as error:
            hint = f"another can be sent in {ceil(error.wait_s / 60)} minutes"
            raise too_many("too_many_codes", f"{error}", hint, error.wait_s) from error
        except NotSent as error:
            raise ApiError(503, "mail_not_sent", f"{error}", "try again, or tell an admin") from error
        self.context.store.notices.expect_code(owner, address, code, self.context.clock())


class EmailHandler(NoticesHandler):
    @route(
        "api/notices/me/email",
        "Confirm your e-mail address by the code that was sent there",
        scope=Scope.SUBMIT,
        body=EmailCode,
        answer=NoticeReport,
    )
    def post(self) -> None:
        code = self.parse(EmailCode).code
        if not self.context.store.notices.confirm(self.user.name, code, self.context.clock()):
            message = "this is not the code of the last mail, or it has expired, or too many were wrong"
            raise ApiError(422, "wrong_code", message, "PUT api/notices/me sends another one")
        self.get()
