"""Why am I waiting, what is my share, who is before me: one answer."""

from __future__ import annotations

from minicluster.wire import MyQueue
from minicluster_hub.usage.queue_view import QueueInputs, my_queue
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.route import Scope, route


class MyQueueHandler(UserHandler):
    """The user's own place; of others only who they are and how many slots they want."""

    @route(
        "api/queue/me",
        "Why one's jobs wait, what one's share is, and who is before them",
        scope=Scope.READ,
        answer=MyQueue,
    )
    def get(self) -> None:
        context, now = self.context, self.context.clock()
        inputs = QueueInputs(
            now=now,
            world=context.status_cache.world,
            waits=context.status_cache.waits(),
            planned=context.status_cache.planned,
            usage=context.accounting.usage(now),
            quotas=context.accounting.quotas,
            gpu_hours=context.accounting.gpu_hours(self.user.name, now),
            policy=context.policy_manager.active.choice.policy,
        )
        self.reply(my_queue(self.user.name, inputs))
