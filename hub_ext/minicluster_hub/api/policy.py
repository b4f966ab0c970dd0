"""The active policy: everybody sees it, admins choose it."""

from __future__ import annotations

from minicluster.wire import PolicyChoice, PolicyReport, WhatIfReport
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.route import Scope, route


class PolicyHandler(UserHandler):
    @route(
        "api/policy",
        "The active policy, and those that can be chosen",
        scope=Scope.READ,
        answer=PolicyReport,
    )
    def get(self) -> None:
        report = self.context.policy_manager.report()
        if self.user.has(Scope.ADMIN):
            report = report.model_copy(update={"shadow": self.context.what_if.latest})
        self.reply(report)

    @route(
        "api/policy",
        "Activate another policy; running jobs keep running",
        scope=Scope.POLICY,
        body=PolicyChoice,
        answer=PolicyReport,
    )
    async def put(self) -> None:
        await self.context.reconciler.choose_policy(self.parse(PolicyChoice), self.user.name)
        self.get()


class WhatIfHandler(UserHandler):
    """It takes some seconds."""

    @route(
        "api/policy/what-if",
        "How each policy would have scheduled last week's jobs",
        scope=Scope.ADMIN,
        answer=WhatIfReport,
        formerly="api/policy/shadow",
    )
    async def get(self) -> None:
        self.reply(await self.context.what_if.report())
