"""What users and groups may have: admins see and change it, and the queue's reasons change at once."""

from __future__ import annotations

from minicluster.wire import Allowances, AllowancesReport, QuotaKind
from minicluster_hub.scheduling.limits import KINDS, QuotaWrong
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import Route, Scope


class QuotasHandler(UserHandler):
    """What is in force; a change is of all of it."""

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.report_bytes

    def get(self) -> None:
        self.reply(self._report())

    def put(self) -> None:
        choice = self.parse(Allowances)
        try:
            self.context.accounting.entitlements.choose(choice, self.user.name, self.context.clock())
        except QuotaWrong as wrong:
            hint = "nothing was changed; GET api/quotas tells which kinds there are"
            raise ApiError(422, "bad_quota", str(wrong), hint) from wrong
        self.context.log.info("quotas and shares were changed by %s", self.user.name)
        self.context.reconciler.wake()
        self.reply(self._report())

    def _report(self) -> AllowancesReport:
        context = self.context
        return AllowancesReport(
            in_force=context.accounting.entitlements.active,
            kinds=tuple(QuotaKind(name=name, summary=what) for name, what in KINDS.items()),
            groups={owner: groups for owner, groups in context.store.owners.groups().items() if groups},
        )


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "api/quotas",
        QuotasHandler,
        "What users and groups may have, and their weights in fair shares",
        scope=Scope.ADMIN,
        answer=AllowancesReport,
    ),
    Route(
        "PUT",
        "api/quotas",
        QuotasHandler,
        "Change it, from now on; running jobs go on as they are",
        scope=Scope.ADMIN,
        body=Allowances,
        answer=AllowancesReport,
    ),
)
