"""Why a job does not get on: asked of its agents now while it runs, else of what is known."""

from __future__ import annotations

from minicluster.wire import Job, JobState, JobWhy
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.diagnosis.why import explain

_ON_ITS_WAY = {
    JobState.STARTING: "its tasks are starting",
    JobState.STOPPING: "its ranks are being stopped",
    JobState.FAILING: "its ranks are being ended after an error",
    JobState.REQUEUING: "it lost a node, and what is left of the attempt is being ended",
    JobState.YIELDING: "it makes room for others, and its newest snapshot is being kept",
    JobState.QUEUED: "it waits for the scheduler",
}


class WhyHandler(UserHandler):
    """One sentence on a job, and the stacks of its ranks while it runs."""

    async def get(self, job_id: str) -> None:
        job = self.context.board.job(self.job_record(job_id))
        if job.state is JobState.RUNNING:
            self.reply(await self._look(job))
        else:
            self.reply(JobWhy(job_id=job.id, state=job.state, sentence=_known(job), hint=_hint(job)))

    async def _look(self, job: Job) -> JobWhy:
        stacks = await self.context.board.look(job.id)
        why = explain(stacks)
        return JobWhy(job_id=job.id, state=job.state, sentence=why.sentence, hint=why.hint, ranks=stacks)


def _known(job: Job) -> str:
    if job.error is not None:
        return f"Job {job.id} is {job.state}: {job.error.message}"
    if job.state is JobState.SUCCEEDED:
        return f"Job {job.id} has succeeded."
    why = job.reason or job.note or _ON_ITS_WAY.get(job.state, "nobody said why")
    return f"Job {job.id} is {job.state}: {why}."


def _hint(job: Job) -> str:
    return job.error.hint if job.error is not None else ""
