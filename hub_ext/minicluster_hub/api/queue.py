"""What a user sees first, and of the queue: why jobs wait, the user's share, and the jobs before them."""

from __future__ import annotations

import asyncio

from minicluster.wire import Curve, Home, JobSpec, MyQueue, OwnerStorage, Run
from minicluster.wire.jobs import GangToPrepare, PreparedGang
from minicluster.wire.starts import StartAnswer, StartForecast, StartQuestion
from minicluster_hub.api.jobs import decided
from minicluster_hub.api.runs.runs import RunHandlerBase
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.runs.series import Span
from minicluster_hub.scheduling.reasons import BEING_FREED, STARTS_NOW
from minicluster_hub.store.jobs.runs import RunQuery
from minicluster_hub.usage.queue_view import QueueInputs, my_queue
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import REFUSALS, ApiError
from minicluster_hub.web.route import Scope, route

_RUNS = 8
_OPEN_JOBS = 50
_POINTS = 60


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
        queue = context.status_cache.engine.batch_queue
        inputs = QueueInputs(
            now=now,
            stored=context.status_cache.stored,
            waits=context.status_cache.waits(),
            planned=context.status_cache.planned,
            usage=context.accounting.usage(now),
            quotas=context.accounting.quotas,
            gpu_hours=context.accounting.gpu_hours(self.user.name, now),
            policy=queue.name if queue else context.policy_manager.active.choice.policy,
            batch_queue=queue is not None,
        )
        self.reply(my_queue(self.user.name, inputs))


class StartsHandler(UserHandler):
    """Forecasts for jobs that are not submitted."""

    @route(
        "api/starts",
        "When jobs would start that are not submitted",
        scope=Scope.READ,
        body=StartQuestion,
        answer=StartAnswer,
    )
    async def post(self) -> None:
        question = self.parse(StartQuestion)
        starts = [await self._start(spec) for spec in question.specs]
        now, nodes = self.context.clock(), self.context.status_cache.nodes().nodes
        self.reply(StartAnswer(now=now, starts=tuple(starts), nodes=nodes))

    async def _start(self, spec: JobSpec) -> StartForecast:
        context = self.context
        try:
            spec = decided(self, spec)
        except REFUSALS as refusal:
            return StartForecast(refused=str(refusal), hint=getattr(refusal, "hint", ""))
        now = context.clock()
        wait, latest = await context.reconciler.start_if_submitted(spec, self.user.name, now)
        return StartForecast(
            nodes=spec.nodes.max if spec.nodes else 0,
            at_once=wait.reason in (STARTS_NOW, BEING_FREED),
            reason=wait.reason,
            expected_start_at=wait.expected_start_at,
            latest_start_at=latest,
        )


class HomeHandler(RunHandlerBase):
    """All of the home page in one answer; api/events has the changes."""

    @route("api/home", "What runs, waits and is free, and your last runs", scope=Scope.READ, answer=Home)
    async def get(self) -> None:
        context, owner = self.context, self.user.name
        waiting = context.store.jobs(owner, open_only=True, limit=_OPEN_JOBS)
        jobs, _ = await asyncio.to_thread(context.store.runs.page, RunQuery(owner, limit=_RUNS))
        runs = self.runs_of(jobs)
        curves = [await self._curve(job, run) for job, run in zip(jobs, runs, strict=True)]
        self.reply(
            Home(
                jobs=tuple(context.status_cache.summaries(waiting)),
                nodes=context.status_cache.nodes(),
                runs=runs,
                curves=tuple(curve for curve in curves if curve is not None),
                storage=await self._storage(owner),
            )
        )

    async def _curve(self, job: JobRecord, run: Run) -> Curve | None:
        name = run.main_metric
        if name is None:
            return None
        try:
            found = await self.read_series(job, lambda file: file.curves(job.id, [name], Span(), _POINTS))
        except ApiError:
            return None  # The rest of the page is worth more than one picture.
        return next(iter(found), None)

    async def _storage(self, owner: str) -> OwnerStorage:
        used = await asyncio.to_thread(self.context.store.storage.used, owner)
        storage = self.context.storage
        return OwnerStorage(
            owner=owner,
            used_bytes=sum(use.size_bytes for use in used.values()),
            limit_bytes=storage.limit_of(owner),
            coming_bytes=storage.coming_bytes(owner),
        )


class GangsHandler(UserHandler):
    """Gangs that are started before there is a job for them."""

    @route(
        "api/gangs",
        "Start a gang for the caller's next cell, if slots are free and nobody waits",
        scope=Scope.SUBMIT,
        body=GangToPrepare,
        answer=PreparedGang,
    )
    def post(self) -> None:
        context, asked = self.context, self.parse(GangToPrepare)
        image = context.catalogue.resolve(asked.image)
        places = context.reconciler.prepare(self.user.name, image, context.clock())
        if places:
            context.reconciler.wake()
        self.reply(PreparedGang(nodes=tuple(node for node, _ in places)))
