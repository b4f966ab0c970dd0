"""Where the time of a run's steps goes."""

from __future__ import annotations

from minicluster.wire import SpeedReport
from minicluster_hub.api.runs.runs import RunHandlerBase
from minicluster_hub.diagnosis.speed import speed_report
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
