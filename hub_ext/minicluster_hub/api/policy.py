"""The active policy: everybody sees it, admins choose it. There is none where another queue orders jobs."""

from __future__ import annotations

from minicluster.wire import PolicyChoice, PolicyReport, WhatIfReport
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import Scope, route


class PolicyBase(UserHandler):
    """Base of handlers for which a policy has to order the jobs."""

    def refuse_for_batch_queue(self) -> None:
        """Raise ApiError (409) if another queue owns the slots: it orders the jobs, and no policy does."""
        if queue := self.context.status_cache.engine.batch_queue:
            message = f"{queue.name} owns the slots of this cluster, and orders its jobs: no policy does"
            hint = f"Set priorities and limits in {queue.name}; quotas of this cluster count, too."
            raise ApiError(409, "not_our_slots", message, hint)


class PolicyHandler(PolicyBase):
    @route(
        "api/policy",
        "The active policy, and those that can be chosen",
        scope=Scope.READ,
        answer=PolicyReport,
    )
    def get(self) -> None:
        report = self.context.policy_manager.report()
        if queue := self.context.status_cache.engine.batch_queue:
            none = {"batch_queue": queue.name, "trouble": "", "policies": (), "placements": ()}
            report = report.model_copy(update=none)
        elif self.user.has(Scope.ADMIN):
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
        self.refuse_for_batch_queue()
        await self.context.reconciler.choose_policy(self.parse(PolicyChoice), self.user.name)
        self.get()


class WhatIfHandler(PolicyBase):
    """It takes some seconds."""

    @route(
        "api/policy/what-if",
        "How each policy would have scheduled last week's jobs",
        scope=Scope.ADMIN,
        answer=WhatIfReport,
        formerly="api/policy/shadow",
    )
    async def get(self) -> None:
        self.refuse_for_batch_queue()
        self.reply(await self.context.what_if.report())
