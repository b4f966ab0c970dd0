"""A user's view of the queue: why jobs wait, the user's share, and the jobs before them."""

from __future__ import annotations

from minicluster.wire import MyQueue
from minicluster_hub.usage.queue_view import QueueInputs, my_queue
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.route import Scope, route


class MyQueueHandler(UserHandler):
    """The user's own position; of other users only their names and slots."""

    @route(
        "api/queue/me",
        "Why your jobs wait, your share, and the jobs before yours",
        scope=Scope.READ,
        answer=MyQueue,
    )
    def get(self) -> None:
        context, now = self.context, self.context.clock()
        inputs = QueueInputs(
            now=now,
            stored=context.status_cache.stored,
            waits=context.status_cache.waits(),
            planned=context.status_cache.planned,
            usage=context.accounting.usage(now),
            quotas=context.accounting.quotas,
            gpu_hours=context.accounting.gpu_hours(self.user.name, now),
            policy=context.policy_manager.active.choice.policy,
        )
        self.reply(my_queue(self.user.name, inputs))
