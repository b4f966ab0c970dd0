"""Sweeps: submit, list, show, stop; and what the ranks of their trials ask."""

from __future__ import annotations

from importlib.util import find_spec

from minicluster.wire.sweeps.sweeps import Importance, Sweep, SweepDetails, SweepList, SweepSubmit
from minicluster.wire.sweeps.trials import (
    DrawAhead,
    DrawnParameter,
    DrawnParameters,
    LeaveTrial,
    SuggestedParameter,
    SuggestParameter,
)
from minicluster_hub.api.jobs import JobsHandler
from minicluster_hub.api.tasks import TaskHandler
from minicluster_hub.store.jobs.sweeps import SweepRecord
from minicluster_hub.sweeps.manager import SuggestImpossible
from minicluster_hub.sweeps.search import SuggestRefused
from minicluster_hub.sweeps.views import sweep_details, sweep_message
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.long_polling import HeldHandler
from minicluster_hub.web.route import OWNER, Query, Scope, route


class SweepsHandler(JobsHandler):
    """Lists and submits sweeps. Their jobs are admitted as all jobs are."""

    @route(
        "api/sweeps",
        "Sweeps, the newest first",
        scope=Scope.READ,
        answer=SweepList,
        query=(OWNER, Query("limit", "integer", "the most sweeps to return", default=50, low=1, high=200)),
    )
    async def get(self) -> None:
        found = self.context.store.sweeps.sweeps(self.requested_owner(), self.query_int("limit"))
        self.reply(SweepList(sweeps=tuple(summary(self.context, sweep) for sweep in found)))

    @route(
        "api/sweeps",
        "Submit a sweep; with the same key again, the answer is the same sweep (200)",
        scope=Scope.SUBMIT,
        body=SweepSubmit,
        answer=Sweep,
        status=201,
    )
    def post(self) -> None:
        context, request = self.context, self.parse(SweepSubmit)
        known = context.store.sweeps.sweep_of_key(self.user.name, request.idempotency_key)
        if known is not None:
            self.reply(summary(context, known))
            return
        if find_spec("optuna") is None:
            message = "sweeps need the package optuna, which is not installed beside this job service"
            raise ApiError(501, "no_optuna", message, "an admin installs it: pip install minicluster[hub]")
        if self.user.groups is not None:
            context.store.owners.note(self.user.name, self.user.groups, context.clock())
        admitted = request.model_copy(update={"spec": self._admitted(request.spec)})
        sweep, new = context.sweeps.submit(self.user.name, admitted)
        self.reply(summary(context, sweep), 201 if new else 200)


class SweepBase(UserHandler):
    """Base of handlers of one sweep."""

    def sweep_record(self, sweep_id: str) -> SweepRecord:
        """Return a sweep of the user; admins also get other users' sweeps. Raises ApiError (404)."""
        sweep = self.context.store.sweeps.sweep(int(sweep_id))
        if sweep is None or (sweep.owner != self.user.name and not self.user.has(Scope.ADMIN)):
            message = f"there is no sweep {sweep_id} of yours"
            raise ApiError(404, "unknown_sweep", message, "GET api/sweeps lists your sweeps")
        return sweep


class SweepHandler(SweepBase, HeldHandler):
    @route(
        "api/sweeps/{sweep_id}",
        "A sweep with its trials; the answer is held while `have` is the newest version",
        scope=Scope.READ,
        answer=SweepDetails,
        query=(Query("have", "string", "the version that the caller has; without it, no answer is held"),),
    )
    async def get(self, sweep_id: str) -> None:
        sweep = self.sweep_record(sweep_id)
        if not self.get_query_argument("have", "") or sweep.state.over:
            self.reply(self._details(sweep.id))
            return
        context = self.context
        with context.streams.one_more(("sweeps", self.user.name), context.limits.polls, "polls of sweeps"):
            found = await self.held(lambda: self._details(sweep.id), context.sweeps.changes, sweep.id)
        self.reply(found)

    def _details(self, sweep_id: int) -> SweepDetails:
        context, queries = self.context, self.context.store.sweeps
        sweep = queries.sweep(sweep_id)
        assert sweep is not None  # noqa: S101 - rows are never deleted
        trials = queries.trials(sweep_id)
        return sweep_details(
            sweep,
            trials,
            queries.parameters(sweep_id),
            queries.newest(trials),
            context.sweeps.note(sweep_id),
            context.clock(),
        )


class SweepStopHandler(SweepBase):
    """Stops a sweep and its trials; may be repeated."""

    @route("api/sweeps/{sweep_id}/stop", "Stop a sweep", scope=Scope.SUBMIT, answer=Sweep)
    def post(self, sweep_id: str) -> None:
        sweep = self.sweep_record(sweep_id)
        self.context.sweeps.stop(sweep)
        self.reply(summary(self.context, self.sweep_record(sweep_id)))


class ImportanceHandler(SweepBase):
    @route(
        "api/sweeps/{sweep_id}/importance",
        "Which parameters of a sweep make its trials good",
        scope=Scope.READ,
        answer=Importance,
    )
    async def get(self, sweep_id: str) -> None:
        sweep = self.sweep_record(sweep_id)
        trials = sum(trial.state is not None for trial in self.context.store.sweeps.trials(sweep.id))
        shares = await self.context.sweeps.searches.importance(sweep)
        self.reply(Importance(shares=shares, trials=trials))


def summary(context: Context, sweep: SweepRecord) -> Sweep:
    """Return a sweep without its trials."""
    queries = context.store.sweeps
    trials = queries.trials(sweep.id)
    return sweep_message(
        sweep, trials, queries.parameters(sweep.id), context.sweeps.note(sweep.id), context.clock()
    )


# What ranks ask through their agents.


class SuggestHandler(TaskHandler):
    """Draws a parameter of the trial that the task's attempt is."""

    @route("api/tasks/suggest", "A parameter of a trial", body=SuggestParameter, answer=SuggestedParameter)
    async def post(self) -> None:
        asked, run = self.parse(SuggestParameter), self.run_order()
        _check_attempt(asked.attempt, run.attempt, self.task.id)
        try:
            drawn = await self.context.sweeps.suggest(run.trial, run.job_id, asked.name, asked.among)
        except SuggestRefused as refused:
            raise ApiError(422, "suggest_refused", refused.message, refused.hint) from refused
        except SuggestImpossible as impossible:
            raise ApiError(409, "no_trial", str(impossible)) from impossible
        self.reply(SuggestedParameter(value=drawn.value))


class DrawAheadHandler(TaskHandler):
    """Draws at once what a trial will probably ask for."""

    @route("api/tasks/draw-ahead", "A trial's likely parameters", body=DrawAhead, answer=DrawnParameters)
    async def post(self) -> None:
        asked, run = self.parse(DrawAhead), self.run_order()
        _check_attempt(asked.attempt, run.attempt, self.task.id)
        try:
            drawn = await self.context.sweeps.draw_ahead(run.trial, run.job_id)
        except SuggestImpossible as impossible:
            raise ApiError(409, "no_trial", str(impossible)) from impossible
        messages = (DrawnParameter(name=one.name, among=one.among, value=one.value) for one in drawn)
        self.reply(DrawnParameters(drawn=tuple(messages)))


class LeaveHandler(TaskHandler):
    """Notes that ranks of a pruned trial leave."""

    @route("api/tasks/leave", "The ranks of a pruned trial leave", body=LeaveTrial, status=204)
    def post(self) -> None:
        asked, run = self.parse(LeaveTrial), self.run_order()
        _check_attempt(asked.attempt, run.attempt, self.task.id)
        self.context.sweeps.leave(run.job_id, asked.step)
        self.set_status(204)
        self.finish()


def _check_attempt(asked: int, now: int, task_id: int) -> None:
    if asked != now:
        raise ApiError(409, "no_attempt", f"task {task_id} runs attempt {now}, not {asked}")
