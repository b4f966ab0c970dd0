"""Jobs run as their users: Linux users made for these tests, who see nothing of each other."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from minicluster_hub.engines.slurm.commands import SlurmRefused
from minicluster_hub.engines.slurm.engine import SlurmEngine
from minicluster_hub.engines.slurm.users import LinuxUsers
from minicluster_hub.support.processes import labelled, signal_all

from ..patience import eventually
from .daemons import SlurmDaemons
from .requests import gangs

ADA, BOB, GROUP = "mc-test-ada", "mc-test-bob", "mc-test-lab"
_SYSTEMS = "/usr/bin/python3"


@pytest.fixture(scope="module")
def python(tree: Path, needs: Callable[[object, str], None]) -> Iterator[str]:
    """A Python for all users: Debian's, with this environment's packages. Root's own is for root alone."""
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    told = subprocess.run([_SYSTEMS, "-V"], capture_output=True, text=True, check=False).stdout
    needs(told.startswith(f"Python {wanted}"), f"{_SYSTEMS} is no Python {wanted}")
    packages = [
        Path(sysconfig.get_path("purelib")),
        *(tree / room for room in ("kernels", "hub_ext", "spawner")),
    ]
    with tempfile.TemporaryDirectory(prefix="mc-python-") as folder:
        Path(folder).chmod(0o755)
        program = Path(folder) / "python3"
        path = ":".join(map(str, packages))
        program.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {_SYSTEMS} "$@"\n')
        program.chmod(0o755)
        yield str(program)


@pytest.fixture(scope="module")
def people(slurm: SlurmDaemons, python: str, needs: Callable[[object, str], None]) -> Iterator[None]:
    """Two users of one group, and their homes."""
    try:
        _run("groupadd", "--force", GROUP)
        for name in (ADA, BOB):
            _run("useradd", "--create-home", "--groups", GROUP, name)
        reached = _as(ADA, python, "-P", "-c", "import minicluster.runtime.agent.agent").returncode == 0
        needs(reached, "other users cannot read this environment's Python")
        yield
    finally:
        for name in (ADA, BOB):
            signal_all([one for one in psutil.process_iter() if _is_of(one, name)])  # else userdel refuses
            subprocess.run(["userdel", "--remove", name], capture_output=True, check=False)
        subprocess.run(["groupdel", GROUP], capture_output=True, check=False)


def _is_of(process: psutil.Process, user: str) -> bool:
    with suppress(psutil.Error):
        return process.username() == user
    return False


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 9), done.stderr  # 9: it is there already


def _as(user: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["runuser", "-u", user, "--", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def engine(slurm: SlurmDaemons, people: None, python: str, tmp_path: Path) -> SlurmEngine:
    become = ["runuser", "-u", "{user}", "--", python, "-P", "-m", "minicluster_hub.engines.slurm.as_user"]
    options = {"slurm_conf": str(slurm.conf), "users_group": GROUP, "python": python}
    return SlurmEngine(data_dir=str(tmp_path), become=become, **options)


def _agent(folder: Path, task_id: int) -> psutil.Process | None:
    wanted = labelled(MINICLUSTER_SLURM=str(folder), MINICLUSTER_TASK=str(task_id))
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "minicluster.runtime.agent" in process.cmdline() and wanted(process.environ()):
                return process
    return None


async def test_each_job_is_its_users_and_others_read_nothing_of_it(
    slurm: SlurmDaemons, engine: SlurmEngine, tmp_path: Path
) -> None:
    async with gangs(slurm, engine) as made:
        (hers,), (his,) = await made.started(1, ADA), await made.started(2, BOB)
        owners = set(slurm.run("squeue", "-h", "-o", "%u").split())
        assert owners == {ADA, BOB}
        for user, task_id, other in ((ADA, hers, BOB), (BOB, his, ADA)):
            agent = await eventually(lambda task_id=task_id: _agent(tmp_path, task_id))
            assert agent.username() == user and agent.cwd() == f"/home/{user}"
            token = Path(agent.environ()["MINICLUSTER_TOKEN_FILE"])
            assert token.read_text() == f"token-of-{user}-0"
            assert _as(user, "cat", str(token)).stdout == f"token-of-{user}-0"
            for path in (token, token.parent, Path(f"/proc/{agent.pid}/environ")):
                assert _as(other, "cat", str(path)).returncode != 0, f"{other} reads {path}"
            shown = _as(other, "ps", "axeww").stdout + _as(other, "scontrol", "show", "step").stdout
            assert f"token-of-{user}" not in shown


async def test_a_user_cannot_end_what_is_anothers_nor_be_taken_for_it(
    slurm: SlurmDaemons, engine: SlurmEngine
) -> None:
    async with gangs(slurm, engine) as made:
        (task_id,) = await made.started(1, ADA)
        number, name = slurm.run("squeue", "-h", "-o", "%i %j").split()
        assert _as(BOB, "env", f"SLURM_CONF={slurm.conf}", "scancel", number).returncode != 0
        words = ["sbatch", "--parsable", f"--job-name={name}", "--chdir=/", "--output=/dev/null"]
        copied = _as(BOB, "env", f"SLURM_CONF={slurm.conf}", *words, "--wrap=sleep 60").stdout.strip()
        await made.granted(2, BOB)
        assert engine.tasks()[task_id].alive
        assert slurm.run("squeue", "-h", "-j", copied, "-o", "%T").strip() in ("RUNNING", "PENDING")
        slurm.run("scancel", copied)


def test_only_users_of_the_group_have_jobs(people: None) -> None:
    users = LinuxUsers(["runuser"], GROUP)
    assert users.of(ADA) == ADA
    for owner, why in (
        ("root", "a user of the system"),
        ("nobody-here", "no Linux user nobody-here"),
        ("Ada Lovelace", "no name of a Linux user"),
    ):
        with pytest.raises(SlurmRefused, match=why):
            users.of(owner)
    with pytest.raises(SlurmRefused, match="not in the Linux group"):
        LinuxUsers(["runuser"], "users").of(ADA)
