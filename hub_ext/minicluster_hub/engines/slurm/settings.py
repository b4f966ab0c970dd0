"""The lab's choices for its jobs in Slurm, and the words of the commands that follow from them: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from minicluster_hub.engines.capabilities import QueueRequest

START_MARGIN_S = 600.0
"""Added to a job's own time limit: its agents start first, and are kept warm afterwards."""
HOLD = "exec sleep infinity"
"""What an allocation runs: nothing, until it is cancelled. Its tasks are steps."""
START_MODULE = "minicluster.runtime.step"
CLEAR = ("rm", "-rf", "--")
"""What removes the folders of a task that was killed."""


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """What all jobs of a cluster have in common; "" and 0: as Slurm chooses by itself.

    partition, account, qos, constraint: as sbatch takes them. time_limit_s: of a job without a limit of its
    own. cpus_per_slot: CPUs for each GPU; on nodes without GPUs, for each slot. cpu_slots: how many slots a
    node without GPUs has; a single one is the whole node. extra: further options of sbatch. python: on the
    nodes. image_command: the words that run a command in an image; {image} is its reference.
    """

    python: str
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    time_limit_s: float = 0.0
    cpus_per_slot: int = 0
    cpu_slots: int = 1
    gres: str = "gpu"
    extra: tuple[str, ...] = ()
    image_command: tuple[str, ...] = ()
    accounts: Mapping[str, str] = field(default_factory=dict[str, str])

    def sbatch(self, name: str, request: QueueRequest, *, gpus: bool) -> list[str]:
        """Return the words that ask Slurm for a gang's nodes. gpus: whether slots are GPUs."""
        words = ["--parsable", f"--job-name={name}", "--chdir=/", "--output=/dev/null", "--error=/dev/null"]
        # A lost node must not end the others' steps, and a job that Slurm requeues would start with new ones.
        words += ["--no-kill", "--no-requeue", *self._size(request, gpus=gpus)]
        account = self.accounts.get(request.owner, self.account)
        chosen = {
            "partition": self.partition,
            "account": account,
            "qos": self.qos,
            "constraint": self.constraint,
            "time": self._minutes(request),
            "exclude": ",".join(request.without),
        }
        words += [f"--{name}={value}" for name, value in chosen.items() if value]
        return [*words, *self.extra, f"--wrap={HOLD}"]

    def _size(self, request: QueueRequest, *, gpus: bool) -> list[str]:
        if request.one_per_node:
            least, most = request.min_replicas, request.max_replicas
            nodes = [f"--nodes={least if least == most else f'{least}-{most}'}", "--ntasks-per-node=1"]
            return nodes + self._of_a_node(request.slots_per_replica, gpus=gpus)
        slots = request.min_replicas * request.slots_per_replica
        if gpus:
            each = [f"--cpus-per-gpu={self.cpus_per_slot}"] if self.cpus_per_slot else []
            return [f"--gpus={self._of_type}{slots}", *each]
        if self.cpu_slots == 1:
            return [f"--nodes={slots}", "--ntasks-per-node=1", "--exclusive"]
        return [f"--ntasks={slots}", f"--cpus-per-task={max(1, self.cpus_per_slot)}"]

    @property
    def _of_type(self) -> str:
        """The type of the GPUs before their number, as sbatch --gpus takes it: "a100:", or ""."""
        kind = self.gres.partition(":")[2]
        return f"{kind}:" if kind else ""

    def _of_a_node(self, slots: int, *, gpus: bool) -> list[str]:
        if gpus:
            each = [f"--cpus-per-gpu={self.cpus_per_slot}"] if self.cpus_per_slot else []
            return [f"--gres={self.gres}:{slots}", *each]
        if self.cpu_slots == 1:
            return ["--exclusive"]
        return [f"--cpus-per-task={slots * max(1, self.cpus_per_slot)}"]

    def _minutes(self, request: QueueRequest) -> str:
        """Return the time limit in minutes, as sbatch takes it."""
        if request.time_limit_s is None:
            return str(ceil(self.time_limit_s / 60)) if self.time_limit_s else ""
        return str(ceil((request.time_limit_s + START_MARGIN_S) / 60))

    def start_words(self, image: str | None) -> Sequence[str]:
        """Return the command of a step. An image has a Python of its own."""
        module = ("-P", "-m", START_MODULE)
        if image is None:
            return (self.python, *module)
        return (*(word.format(image=image) for word in self.image_command), "python", *module)


def step_words(name: str, slurm_job: int, node: str) -> list[str]:
    """Return the words of srun before the command of a step on a node of an allocation.

    --overlap: tasks of an allocation, and what clears up after them, share its CPUs, memory and GPUs.
    """
    words = [f"--jobid={slurm_job}", f"--job-name={name}", f"--nodelist={node}"]
    words += ["--nodes=1", "--ntasks=1", "--overlap", "--unbuffered"]
    return [*words, "--chdir=/", "--mpi=none", "--quit-on-interrupt"]
