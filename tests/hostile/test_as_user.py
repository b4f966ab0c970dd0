"""What sudo lets the job service run as its users: exactly what the engine `slurm` asks for."""

from __future__ import annotations

import pytest

from minicluster_hub.engines.capabilities import QueueRequest
from minicluster_hub.engines.slurm.as_user import NotAllowed, checked
from minicluster_hub.engines.slurm.names import Names
from minicluster_hub.engines.slurm.settings import CLEAR, SlurmSettings, step_words

NAMES = Names(b"secret")
SETTINGS = SlurmSettings(
    "/opt/minicluster/bin/python3", "lab", "physics", "high", "a100", 3600.0, accounts={"ada": "maths"}
)
STEP = step_words("mc-t1-g1-0123456789abcdef", 12, "n1")


@pytest.mark.parametrize("gpus", [True, False])
@pytest.mark.parametrize(
    "request_",
    [
        QueueRequest(1, "ada", 0, 1, 3, 2, without=("n1", "n2")),
        QueueRequest(1, "ada", 0, 2, 2, 1, one_per_node=False, time_limit_s=60.0),
    ],
)
def test_what_the_engine_asks_for_is_allowed(request_: QueueRequest, gpus: bool) -> None:
    words = ["sbatch", *SETTINGS.sbatch(NAMES.allocation(request_, "ada"), request_, gpus=gpus)]
    assert checked(words) == words


@pytest.mark.parametrize(
    "words",
    [
        ["srun", *STEP, *SETTINGS.start_words(None)],
        ["srun", *STEP, *CLEAR, f"/tmp/{NAMES.scratch(1)}", f"/dev/shm/{NAMES.scratch(1)}"],
        ["scancel", "12"],
        ["scancel", "--signal=TERM", "12.0"],
    ],
)
def test_what_it_does_with_steps_is_allowed(words: list[str]) -> None:
    assert checked(words) == words


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["bash", "-c", "id"],
        ["/bin/sh"],
        ["sbatch", "--wrap=id"],
        ["sbatch", "--wrap=exec sleep infinity; id"],
        ["sbatch", "--wrap=exec sleep infinity\nid"],
        ["sbatch", "script.sh"],
        ["sbatch", "--uid=root", "--wrap=exec sleep infinity"],
        ["sbatch", "--output=/home/ada/.bashrc", "--wrap=exec sleep infinity"],
        ["sbatch", "--job-name=$(id)", "--wrap=exec sleep infinity"],
        ["srun", *STEP],
        ["srun", *STEP, "id"],
        ["srun", "--prolog=/tmp/x", *STEP, *SETTINGS.start_words(None)],
        ["srun", *STEP, "/opt/python3", "-c", "import os"],
        ["srun", *STEP, "/opt/python3", "-P", "-m", "minicluster.runtime.step", "more"],
        ["srun", *STEP, "/opt/../tmp/python3", "-P", "-m", "minicluster.runtime.step"],
        ["srun", *STEP, *CLEAR, "/home/ada", "/dev/shm/x"],
        ["srun", *STEP, *CLEAR, "/home/../minicluster-1-0123456789abcdef", f"/tmp/{NAMES.scratch(1)}"],
        ["srun", *SETTINGS.start_words(None), *STEP],
        ["scancel", "--user=ada"],
        ["scancel", "12", "--signal=KILL"],
    ],
)
def test_all_else_is_refused(words: list[str]) -> None:
    with pytest.raises(NotAllowed):
        checked(words)
