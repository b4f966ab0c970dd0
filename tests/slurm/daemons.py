"""A real Slurm on one machine: munged, slurmctld and three slurmd, each with its own port and folders."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ..patience import until

NODES = ("n1", "n2", "n3")
GPUS = 2
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "sinfo", "scontrol", "scancel")
_CPUS = 4
_SLURM_CONF = """
ClusterName=mclab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdTimeout=5
KillWait=5
MinJobAge=2
PreemptType=preempt/qos
PreemptMode=CANCEL
SchedulerParameters=bf_interval=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
{accounting}
NodeName=n[1-3] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] \\
  CPUs={cpus} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=lab Nodes=ALL Default=YES MaxTime=UNLIMITED DefaultTime=60 State=UP
"""


def lacking() -> str:
    """Return what this machine lacks for a Slurm of its own; "" if nothing."""
    missing = [name for name in PROGRAMS if _program(name) is None]
    if missing:
        return f"no {', '.join(missing)} (Debian's packages slurm-wlm and munge)"
    return "" if os.getuid() == 0 else "slurmd runs as root only"


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class SlurmDaemons:
    """Started daemons. folder: everybody may enter it, since users' commands need munge's socket.

    accounting: further lines of slurm.conf; {folder} stands for the folder.
    """

    def __init__(self, accounting: str = "") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mc-slurm-"))
        self.folder.chmod(0o755)
        self.conf = self.folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._write(accounting)

    def start(self) -> None:
        self._start_munge()
        self.before_controller()
        self.daemon("slurmctld", "-D", "-f", str(self.conf))
        for node in NODES:
            self.bring_back(node)
        self.wait_idle()

    def before_controller(self) -> None:
        """Start what the controller needs beside munge."""

    def bring_back(self, node: str) -> None:
        """Start a node's daemon."""
        self.daemon("slurmd", "-D", "-N", node, "-f", str(self.conf), name=node)

    def lose(self, node: str) -> None:
        """Kill all of a node at once: its daemon, the parents of its steps, and their processes."""
        self._kill(self._processes.pop(node))
        for process in [process for process in psutil.process_iter() if self._is_of(process, node)]:
            with suppress(psutil.Error):
                parents = [one for one in process.parents() if one.name().startswith("slurmstepd")]
                for one in (*parents, *process.children(recursive=True), process):
                    with suppress(psutil.Error):
                        one.kill()

    def stop(self) -> None:
        """End all daemons and remove their files."""
        with suppress(AssertionError, subprocess.SubprocessError):
            # A step's parent outlives daemons that end before it.
            if jobs := self.run("squeue", "-h", "-a", "-o", "%i", timeout_s=10).split():
                self.run("scancel", *jobs, timeout_s=10)
            until(lambda: not self.run("squeue", "-h", "-a", "-o", "%i", timeout_s=10), within_s=15)
        for process in reversed(self._processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            self._kill(process)
        for process in psutil.process_iter():
            if any(self._is_of(process, node) for node in NODES):
                with suppress(psutil.Error):
                    process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *words: str, timeout_s: float = 60.0) -> str:
        """Run one of Slurm's commands; return its output."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}\n{self.log()}"
        return done.stdout

    def wait_idle(self) -> None:
        until(lambda: self._states() == ["idle"] * len(NODES))

    def log(self) -> str:
        """Return the end of the controller's log, for a failure."""
        path = self.folder / "slurmctld.log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else ""

    def _states(self) -> list[str]:
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%T"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.split()

    def _write(self, accounting: str) -> None:
        for name in ("munge", "state", "spool", "gpus"):
            (self.folder / name).mkdir()
        (self.folder / "munge").chmod(0o755)
        first, port = free_ports(len(NODES) + 1)
        text = _SLURM_CONF.format(
            host=socket.gethostname().partition(".")[0],
            port=port,
            folder=self.folder,
            accounting=accounting.format(folder=self.folder),
            first=first,
            last=first + len(NODES) - 1,
            cpus=_CPUS,
            gpus=GPUS,
        )
        self.conf.write_text(text)
        for number in range(GPUS):
            (self.folder / "gpus" / f"gpu{number}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpus/gpu[0-{GPUS - 1}]\n")
        if version() >= (23, 11):
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(64))
        files = [f"--{name}-file={folder}/{name}" for name in ("key", "pid", "seed", "log")]
        self.daemon("munged", "--foreground", "--force", f"--socket={folder}/socket", *files)
        until(lambda: (folder / "socket").exists())

    def daemon(self, program: str, *words: str, name: str = "") -> None:
        """Start a program that runs until the end."""
        path = _program(program)
        assert path is not None
        with (self.folder / f"{name or program}.out").open("ab") as out:
            self._processes[name or program] = subprocess.Popen(
                [path, *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def _is_of(self, process: psutil.Process, node: str) -> bool:
        """Whether a process was started by a step on a node of this Slurm."""
        try:
            environment = process.environ()
        except psutil.Error:
            return False
        mine = environment.get("SLURM_CONF") == str(self.conf)
        return mine and environment.get("SLURMD_NODENAME") == node


def version() -> tuple[int, ...]:
    """Return Slurm's version: (22, 5, 8)."""
    words = [_program("slurmd") or "slurmd", "-V"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in text.split()[-1].split(".") if part.isdecimal())


def free_ports(count: int, lowest: int = 20_000) -> tuple[int, int]:
    """Return the first and the last of some ports in a row, from `lowest` on, that nobody listens at."""
    for first in range(lowest, lowest + 10_000, count):
        with suppress(OSError):
            for opened in _listeners(range(first, first + count)):
                opened.close()
            return first, first + count - 1
    raise AssertionError("no free ports")


def _listeners(ports: Sequence[int]) -> Iterator[socket.socket]:
    for port in ports:
        yield socket.create_server(("127.0.0.1", port))
