"""The names of our jobs and steps in Slurm. By them the engine finds its own after a restart, and no others.

Everybody sees the names in squeue and can give them to jobs of their own. So each has a code that only this
cluster can make, for that user and that job.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import astuple, dataclass

from minicluster_hub.engines.capabilities import QueueRequest

PREFIX = "mc"
_ALLOCATION = re.compile(PREFIX + r"-(\d+)-(\d+)-([0-9a-f]{8})-([0-9a-f]{16})")
_TASK = re.compile(PREFIX + r"-t(\d+)-g(\d+)-([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class AllocationName:
    """What the name of an allocation says. attempt, digest: of the request."""

    job_id: int
    attempt: int
    digest: str


@dataclass(frozen=True, slots=True)
class TaskName:
    task_id: int
    gang_id: int


class Names:
    """secret: this cluster's own, which no user has."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def allocation(self, request: QueueRequest, user: str) -> str:
        """Return the name of the one job of Slurm for a request. user: whose job it is in Slurm."""
        digest = hashlib.sha256(repr(astuple(request)).encode()).hexdigest()[:8]
        text = f"{PREFIX}-{request.job_id}-{request.attempt}-{digest}"
        return f"{text}-{self._code(text, user)}"

    def read_allocation(self, name: str, user: str) -> AllocationName | None:
        """Return what a job's name says; None if it is not ours."""
        found = _ALLOCATION.fullmatch(name)
        if found is None or not self._genuine(name, user):
            return None
        return AllocationName(int(found[1]), int(found[2]), found[3])

    def task(self, task_id: int, gang_id: int, slurm_job: int) -> str:
        """Return the name of a task's step in an allocation."""
        text = f"{PREFIX}-t{task_id}-g{gang_id}"
        return f"{text}-{self._code(text, str(slurm_job))}"

    def read_task(self, name: str, slurm_job: int) -> TaskName | None:
        """Return what a step's name says; None if it is not ours."""
        found = _TASK.fullmatch(name)
        if found is None or not self._genuine(name, str(slurm_job)):
            return None
        return TaskName(int(found[1]), int(found[2]))

    def scratch(self, task_id: int) -> str:
        """Return the name of a task's folders on its node: nobody else can make one of that name before."""
        return f"minicluster-{task_id}-{self._code('scratch', str(task_id))}"

    def _genuine(self, name: str, of: str) -> bool:
        text, _, code = name.rpartition("-")
        return hmac.compare_digest(code, self._code(text, of))

    def _code(self, text: str, of: str) -> str:
        return hmac.new(self._secret, f"{text}\0{of}".encode(), hashlib.sha256).hexdigest()[:16]
