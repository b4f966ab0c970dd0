"""Why Slurm lets a job wait: its own code, as the end of a sentence about the job. Pure."""

from __future__ import annotations

from minicluster_hub.engines.capabilities import QueueWait
from minicluster_hub.engines.slurm.parsing import SlurmJob

SUBMITTING = QueueWait("is being submitted to Slurm")
STARTING = QueueWait("has its nodes from Slurm and starts now")
CANCELLED = QueueWait("was cancelled in Slurm; it is submitted again within a minute, unless you stop it")
_SENTENCES = {
    "Resources": "waits in Slurm's queue for free nodes",
    "Priority": "waits in Slurm's queue, where other jobs have a higher priority",
    "None": "was just submitted to Slurm",
    "BeginTime": "was given a later begin by Slurm",
    "Dependency": "waits in Slurm for another job",
    "JobHeldUser": "is held in Slurm; `scontrol release` lets it go on",
    "JobHeldAdmin": "is held in Slurm by an administrator",
    "PartitionDown": "waits for its partition in Slurm, which is down",
    "PartitionInactive": "waits for its partition in Slurm, which is inactive",
    "PartitionNodeLimit": "asks for more nodes than its partition in Slurm allows",
    "PartitionTimeLimit": "asks for more time than its partition in Slurm allows",
    "ReqNodeNotAvail": "needs nodes that are down, drained or reserved in Slurm",
    "Reservation": "waits for its reservation in Slurm",
    "Licenses": "waits in Slurm for a license",
}
_LIMITS = ("QOS", "Assoc")
_FOR_SLOTS = ("Resources", "Priority", *_LIMITS)
_LOSSES = (
    "Communication connection failure",
    "Unable to contact",
    "Connection refused",
    "Connection timed out",
    "Socket timed out",
    "Node failure",
    "Required node not available",
    "Invalid job id",
    "already completing or completed",
)


def queue_wait(job: SlurmJob) -> QueueWait:
    """Return why a pending job waits."""
    code = job.reason.strip("()").partition(",")[0].strip() or "None"
    if code.startswith(_LIMITS):
        sentence = "waits for a limit of your account in Slurm"
    else:
        sentence = _SENTENCES.get(code, "waits in Slurm's queue")
    return QueueWait(f"{sentence} (Slurm: {code})", job.starts_at, code.startswith(_FOR_SLOTS))


def refused_wait(message: str) -> QueueWait:
    """Return why a job waits whose request Slurm did not take."""
    return QueueWait(f"was not taken by Slurm, which is asked again each minute: {message}")


def tells_of_a_loss(output: str) -> bool:
    """Whether srun ended since it lost a node or its allocation, not since the task ended by itself."""
    return any("srun: " in line and any(loss in line for loss in _LOSSES) for line in output.splitlines())
