"""The policy in force: everyone may see it, admins choose it."""

from __future__ import annotations

from minicluster.wire import PolicyChoice, PolicyReport, WhatIfReport
from minicluster_hub.policy.choices import ChoiceRefused
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import Route, Scope


class PolicyHandler(UserHandler):
    """What is in force, and a change of it: no job is touched by the change itself."""

    def get(self) -> None:
        self.reply(self._report())

    async def put(self) -> None:
        choice = self.parse(PolicyChoice)
        try:
            await self.context.reconciler.choose_policy(choice, self.user.name)
        except ChoiceRefused as refused:
            raise ApiError(422, refused.code, refused.message, refused.hint) from refused
        self.reply(self._report())

    def _report(self) -> PolicyReport:
        """Return what is in force; what others would have done is for admins' eyes."""
        report = self.context.policy_manager.report()
        if not self.user.has(Scope.ADMIN):
            return report
        return report.model_copy(update={"shadow": self.context.what_if.latest})


class WhatIfHandler(UserHandler):
    """What other policies would have done; it takes some seconds."""

    async def get(self) -> None:
        self.reply(await self.context.what_if.report())


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "api/policy",
        PolicyHandler,
        "Who goes first, by which rule, and what else there is to choose",
        scope=Scope.READ,
        answer=PolicyReport,
    ),
    Route(
        "PUT",
        "api/policy",
        PolicyHandler,
        "Put another policy in force; jobs go on as they are",
        scope=Scope.ADMIN,
        body=PolicyChoice,
        answer=PolicyReport,
    ),
    Route(
        "GET",
        "api/policy/shadow",
        WhatIfHandler,
        "What each policy would have done with the last week's jobs",
        scope=Scope.ADMIN,
        answer=WhatIfReport,
    ),
)
