"""Quotas and shares of users and groups: admins read and change them, and the queue follows at once."""

from __future__ import annotations

from minicluster.wire import Allowances, AllowancesReport, QuotaKind
from minicluster_hub.scheduling.limits import KINDS, QuotaWrong
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import Scope, route


class QuotasHandler(UserHandler):
    """All quotas; a change replaces all of them."""

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.report_bytes

    @route(
        "api/quotas",
        "Quotas of users and groups, and their weights in fair shares",
        scope=Scope.ADMIN,
        answer=AllowancesReport,
    )
    def get(self) -> None:
        groups = self.context.store.owners.groups()
        self.reply(
            AllowancesReport(
                in_force=self.context.accounting.entitlements.active,
                kinds=tuple(QuotaKind(name=name, summary=what) for name, what in KINDS.items()),
                groups={owner: names for owner, names in groups.items() if names},
            )
        )

    @route(
        "api/quotas",
        "Replace all of them; running jobs keep running",
        scope=Scope.ADMIN,
        body=Allowances,
        answer=AllowancesReport,
    )
    def put(self) -> None:
        context, choice = self.context, self.parse(Allowances)
        try:
            context.accounting.entitlements.choose(choice, self.user.name, context.clock())
        except QuotaWrong as wrong:
            hint = "nothing was changed; GET api/quotas lists the kinds of limits"
            raise ApiError(422, "bad_quota", str(wrong), hint) from wrong
        context.log.info("quotas and shares were changed by %s", self.user.name)
        context.reconciler.wake()
        self.get()
