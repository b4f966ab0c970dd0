"""Where the time of a run's steps goes: measured always, and profiled on request."""

from __future__ import annotations

from minicluster.wire import JobState, ProfileRequest, SpeedReport
from minicluster_hub.api.runs.runs import RunHandlerBase
from minicluster_hub.diagnosis.speed import speed_report
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import Scope, route


class SpeedHandler(RunHandlerBase):
    @route(
        "api/runs/{job_id}/speed",
        "Each rank's shares of data loading, computing and communication; the rank that the others wait for",
        scope=Scope.READ,
        answer=SpeedReport,
    )
    async def get(self, job_id: str) -> None:
        windows = await self.read_series(self.job_record(job_id), lambda file: file.step_times())
        self.reply(speed_report(windows))


class ProfileHandler(RunHandlerBase):
    """The ranks print what they found, log it as tables, and leave a trace in the run's files."""

    @route(
        "api/runs/{job_id}/profile",
        "Have ranks of a running job profile their next steps",
        scope=Scope.SUBMIT,
        body=ProfileRequest,
        status=204,
    )
    def post(self, job_id: str) -> None:
        job = self.context.status_cache.job(self.job_record(job_id))
        ask = self.parse(ProfileRequest)
        if job.state is not JobState.RUNNING:
            message = f"job {job.id} is {job.state}: only a running job has steps to profile"
            raise ApiError(409, "not_running", message, "In a cell, `with mc.profile():` does the same.")
        ranks = job.world_size or 1
        if max(ask.ranks) >= ranks:
            message = f"job {job.id} has no rank {max(ask.ranks)}: its ranks are 0 to {ranks - 1}"
            raise ApiError(422, "unknown_rank", message)
        self.context.status_cache.profile(job.id, ask)
        self.set_status(204)
