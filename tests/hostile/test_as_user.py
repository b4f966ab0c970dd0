"""What sudo lets the job service run as its users: exactly what the engine `slurm` asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicluster_hub.engines.capabilities import QueueRequest
from minicluster_hub.engines.slurm.as_user import NotAllowed, checked, environment_of
from minicluster_hub.engines.slurm.names import Names
from minicluster_hub.engines.slurm.settings import CLEAR, SlurmSettings, step_words

NAMES = Names(b"secret")
SETTINGS = SlurmSettings(
    "/opt/minicluster/bin/python3",
    "lab",
    "physics",
    "high",
    "a100",
    3600.0,
    gres="gpu:a100",
    accounts={"ada": "maths"},
    extra=("--mem=16G",),
    image_command=("apptainer", "exec", "--nv", "--bind=/shared:/data:ro", "docker://{image}"),
)
IMAGE = f"registry.lab.org:5000/minicluster/notebook@sha256:{'0' * 64}"
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
        ["srun", *STEP, *SETTINGS.start_words(IMAGE)],
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
        ["sbatch", "--parsable"],
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
        ["srun", *STEP, "apptainer", "exec", "docker://busybox", *SETTINGS.start_words(IMAGE)[-4:]],
        ["srun", *STEP, "apptainer", "exec", f"docker://{IMAGE}", "sh"],
        ["srun", *STEP, "apptainer", "exec", "--fakeroot", *SETTINGS.start_words(IMAGE)[2:]],
        ["srun", *STEP, *SETTINGS.start_words(IMAGE), "--nv"],
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


def test_a_slurm_conf_of_others_is_refused(tmp_path: Path) -> None:
    """It could name plugins, which Slurm's commands would load as the user."""
    conf = tmp_path / "slurm.conf"
    conf.touch(mode=0o666)
    conf.chmod(0o666)
    with pytest.raises(NotAllowed, match="not root's alone"):
        environment_of({"SLURM_CONF": str(conf), "LD_PRELOAD": "/tmp/x.so"})
    assert environment_of({"LD_PRELOAD": "/tmp/x.so", "PATH": "/tmp"}).keys() == {"PATH", "LANG"}
